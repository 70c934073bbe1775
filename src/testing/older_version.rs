//! Lets the program of a test act as an earlier version, so that tests upgrade and roll back a fleet.

/// The format level of the earlier version. `None` in the shipped binary.
#[cfg(not(feature = "test-support"))]
macro_rules! older_level {
    () => {
        None::<u32>
    };
}

#[cfg(feature = "test-support")]
macro_rules! older_level {
    () => {
        $crate::testing::older_version::level()
    };
}

/// Environment variable: the greatest format level that the program reads.
#[cfg(feature = "test-support")]
const LEVEL: &str = "TEST_FORMAT_LEVEL";

#[cfg(feature = "test-support")]
pub(crate) fn level() -> Option<u32> {
    static READ: std::sync::LazyLock<Option<u32>> = std::sync::LazyLock::new(|| {
        let text = std::env::var(LEVEL).ok()?;
        let level = text.parse();
        Some(level.unwrap_or_else(|_| panic!("{LEVEL}={text}: give a number")))
    });
    *READ
}
