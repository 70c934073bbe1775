//! When a recurring schedule is due: a cron expression in a time zone, or a fixed interval.
//!
//! Everything here is a function of the definition and of the time-zone data in the binary. No
//! occurrence depends on the one before, and each search has a bound.
//!
//! | file | duty |
//! |---|---|
//! | `cron_text` | from the text of an expression to its fields |
//! | `cron_expression` | the fields as sets, and the next local time that they match |
//! | `cron_in_zone` | from local times to instants: the rules for daylight saving |
//! | `occurrence` | bounds, spread, and the next occurrence |
//! | `cron_words` | an expression in words |
//! | `missed` | which occurrences are delivered after an outage |
//! | `definition` | the record that defines a schedule |
//! | `zones` | the time zones of the binary |

mod cron_expression;
mod cron_in_zone;
#[cfg(test)]
mod cron_oracle_tests;
mod cron_text;
mod cron_words;
mod definition;
mod missed;
mod occurrence;
mod zones;

pub(crate) use definition::{Definition, ParsedDefinition, parse_definition};
pub(crate) use occurrence::Occurrence;
pub(crate) use zones::zone_data_version;
