//! The levels of stored formats. A level adds formats that a version of the level before cannot read.

/// The greatest level that this version reads. Level 1 has encrypted runs, answers, `postdate-until`, and the
/// rules of [`PositionRules::format_level`](crate::model::PositionRules::format_level).
pub(crate) const FORMAT_LEVEL: u32 = 1;

/// The least level that delivers only the copy of a message. A worker of a lower level would deliver both.
pub(crate) const COPY_LEVEL: u32 = 1;

/// The greatest level that this process reads.
pub(crate) fn readable_level() -> u32 {
    older_level!().unwrap_or(FORMAT_LEVEL)
}
