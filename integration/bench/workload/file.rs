//! Reads a workload from a file and reports all of its problems at once.
//!
//! Each problem has its key, line and fix, as in the service's own configuration errors.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml_edit::{ImDocument, Item, TableLike};

use super::error::{Error, Problem};
use super::quantity::Quantity;
use super::{
    COUNT_MAX, Deep, Delay, HEADER_BYTES_MAX, HEADERS_MAX, KEY_MAX, KEY_MIN, Message, PAYLOAD_MIN,
    RECORD_BYTES_MAX, WAITING, Workload,
};

/// All keys, including the tables that contain them.
const KEYS: [&str; 30] = [
    "count",
    "partitions",
    "message",
    "message.payload",
    "message.noise_percent",
    "message.key",
    "message.distinct_keys",
    "message.headers",
    "delay",
    "delay.distribution",
    "delay.min",
    "delay.mean",
    "delay.max",
    "steady",
    "steady.rates",
    "steady.lasts",
    "steady.delay",
    "steady.delay.distribution",
    "steady.delay.min",
    "steady.delay.mean",
    "steady.delay.max",
    "deep",
    "deep.waiting",
    "deep.rate",
    "deep.lasts",
    "deep.delay",
    "deep.delay.distribution",
    "deep.delay.min",
    "deep.delay.mean",
    "deep.delay.max",
];

const SECOND: Duration = Duration::from_secs(1);
/// The longest delay that a route accepts by default.
const DELAY_MAX: &str = "30d";
/// The longest steady load.
const STEADY_MAX: &str = "10m";
/// Below 30 s, because a measurement stops waiting after 30 s without an arrival.
const STEADY_DELAY_MAX: &str = "20s";
/// A broker refuses larger records by default.
const PAYLOAD_MAX: &str = "900KiB";

/// Bytes of the two lengths that the service's limit counts for each header.
const HEADER_BYTES_BESIDE: usize = 8;

/// Reads the workload from a file. Missing keys keep their defaults.
pub(crate) fn read(path: &Path) -> Result<Workload, Error> {
    let mut reader = Reader {
        path: path.to_owned(),
        text: String::new(),
        document: None,
        problems: Vec::new(),
    };
    let workload = reader.read();
    if reader.problems.is_empty() {
        Ok(workload)
    } else {
        Err(Error(reader.problems))
    }
}

struct Reader {
    path: PathBuf,
    text: String,
    document: Option<ImDocument<String>>,
    problems: Vec<Problem>,
}

impl Reader {
    fn read(&mut self) -> Workload {
        let mut load = Workload::default();
        if !self.parse() {
            return load;
        }
        self.refuse_misshapen();
        load.count = self.whole("count", 1_000..=COUNT_MAX, load.count);
        load.partitions = self.whole("partitions", 1..=64, load.partitions as usize) as i32;
        let message = &mut load.message;
        message.payload_bytes = self.size(
            "message.payload",
            [&format!("{PAYLOAD_MIN}B"), PAYLOAD_MAX],
            message.payload_bytes,
        );
        message.noise_percent = self.whole("message.noise_percent", 0..=50, message.noise_percent);
        let keys = [format!("{KEY_MIN}B"), format!("{KEY_MAX}B")];
        message.key_bytes = self.size("message.key", [&keys[0], &keys[1]], message.key_bytes);
        message.distinct_keys = self
            .find("message.distinct_keys")
            .is_some()
            .then(|| self.whole("message.distinct_keys", 1..=COUNT_MAX, 1_000));
        message.headers = self.headers(std::mem::take(&mut message.headers));
        let message = load.message.clone();
        self.refuse_giant(&message);
        load.delay = self.delay("delay", DELAY_MAX, load.delay);
        load.steady.rates = self.rates(std::mem::take(&mut load.steady.rates));
        load.steady.lasts = self.quantity("steady.lasts", ["1s", STEADY_MAX], load.steady.lasts);
        load.steady.delay = self.delay("steady.delay", STEADY_DELAY_MAX, load.steady.delay);
        load.deep = self.deep(load.deep);
        let most = load.steady.rates.iter().max().map_or(0, |rate| {
            rate.saturating_mul(load.steady.lasts.as_secs() as usize)
        });
        if most > COUNT_MAX {
            self.refuse(
                "steady.lasts",
                format!("at the greatest rate it makes {most} messages"),
                format!("at most {COUNT_MAX}"),
            );
        }
        load
    }

    fn deep(&mut self, usual: Deep) -> Deep {
        let waiting = self.whole("deep.waiting", WAITING, usual.waiting);
        let rate = self.whole("deep.rate", 10..=1_000_000, usual.rate);
        let lasts = self.quantity("deep.lasts", ["1s", STEADY_MAX], usual.lasts);
        let delay = self.delay("deep.delay", DELAY_MAX, usual.delay);
        // The load runs twice on the same route, and the waiting messages use half of the numbers.
        if rate.saturating_mul(lasts.as_secs() as usize) > COUNT_MAX / 4 {
            self.refuse(
                "deep.lasts",
                "at that rate it makes too many messages".to_owned(),
                format!("at most {} in all", COUNT_MAX / 4),
            );
        }
        Deep {
            waiting,
            delay,
            rate,
            lasts,
        }
    }

    fn parse(&mut self) -> bool {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => self.text = text,
            Err(error) => {
                self.whole_file(
                    None,
                    format!("it cannot be read: {error}"),
                    "give the path of a workload file: WORKLOAD=path",
                );
                return false;
            }
        }
        match ImDocument::parse(self.text.clone()) {
            Ok(document) => self.document = Some(document),
            Err(error) => {
                let what = format!(
                    "this is not TOML: {}",
                    error.message().trim().replace('\n', ", ")
                );
                self.whole_file(
                    error.span().map(|span| span.start),
                    what,
                    "see the example beside the bench: integration/bench/workload.toml",
                );
            }
        }
        self.document.is_some()
    }

    fn refuse_misshapen(&mut self) {
        let mut faults = Vec::new();
        if let Some(document) = &self.document {
            collect_misshapen(document.as_table(), "", &mut faults);
        }
        for key in faults {
            if KEYS.contains(&key.as_str()) {
                self.refuse(
                    &key,
                    "it is a table, and a value stands here".to_owned(),
                    format!("[{key}], and its keys below"),
                );
                continue;
            }
            let fix = meant(&key).map_or_else(
                || "remove it".to_owned(),
                |near| format!("is `{near}` meant? Else remove it"),
            );
            self.refuse(&key, "there is no such key".to_owned(), fix);
        }
    }

    fn whole(&mut self, key: &str, range: RangeInclusive<usize>, usual: usize) -> usize {
        let Some(item) = self.find(key) else {
            return usual;
        };
        let value = item
            .as_integer()
            .and_then(|value| usize::try_from(value).ok());
        let fix = format!(
            "a whole number from {} to {}, such as {usual}",
            range.start(),
            range.end()
        );
        self.checked(key, value.filter(|value| range.contains(value)), fix, usual)
    }

    fn size(&mut self, key: &str, range: [&str; 2], usual: usize) -> usize {
        self.quantity(key, range, usual as u64) as usize
    }

    /// Refuses a message that exceeds the record limit although each of its parts is valid.
    fn refuse_giant(&mut self, message: &Message) {
        let bytes = message.bytes();
        if bytes > RECORD_BYTES_MAX {
            let what = format!(
                "payload, key and headers are {bytes} bytes, and brokers take no such record unless they are told to"
            );
            self.refuse(
                "message",
                what,
                format!("at most {RECORD_BYTES_MAX} bytes together"),
            );
        }
    }

    /// Reads a value with a unit, from `least` to `greatest`.
    fn quantity<T: Quantity>(&mut self, key: &str, [least, greatest]: [&str; 2], usual: T) -> T {
        let Some(item) = self.find(key) else {
            return usual;
        };
        let value = item
            .as_str()
            .and_then(T::parse)
            .filter(|value| T::parse(least) <= Some(*value) && Some(*value) <= T::parse(greatest));
        let fix = format!("{}; from {least} to {greatest}", T::GRAMMAR);
        self.checked(key, value, fix, usual)
    }

    fn delay(&mut self, table: &str, greatest: &str, usual: Delay) -> Delay {
        if self.find(table).is_none() {
            return usual;
        }
        let [distribution, min, mean, max] =
            ["distribution", "min", "mean", "max"].map(|name| format!("{table}.{name}"));
        let exponential = match self
            .find(&distribution)
            .map(|item| item.as_str().unwrap_or_default().to_owned())
            .as_deref()
        {
            None | Some("uniform") => false,
            Some("exponential") => true,
            Some(_) => self.checked(
                &distribution,
                None,
                "one of \"uniform\", \"exponential\"".to_owned(),
                false,
            ),
        };
        let range = ["1s", greatest];
        let usual_max = Duration::parse(greatest).map_or(usual.max(), |it| it.min(usual.max()));
        let least = self.quantity(&min, range, SECOND);
        let most = self.quantity(&max, range, usual_max);
        if least > most {
            let what = "it is beyond max".to_owned();
            self.refuse(&min, what, "at most max".to_owned());
        }
        if !exponential {
            if self.find(&mean).is_some() {
                self.refuse(
                    &mean,
                    "a uniform delay has none".to_owned(),
                    "remove it, or say distribution = \"exponential\"".to_owned(),
                );
            }
            return Delay::Uniform {
                min: least.min(most),
                max: most,
            };
        }
        if self.find(&mean).is_none() {
            self.refuse(
                &mean,
                "missing".to_owned(),
                format!("give the mean of the distribution, such as {mean} = \"1h\""),
            );
        }
        let middle = self.quantity(&mean, range, least);
        if least <= most && !(least..=most).contains(&middle) {
            let what = "it is not between min and max".to_owned();
            self.refuse(&mean, what, "from min to max".to_owned());
        }
        Delay::Exponential {
            min: least.min(most),
            mean: middle,
            max: most,
        }
    }

    fn rates(&mut self, usual: Vec<usize>) -> Vec<usize> {
        let Some(item) = self.find("steady.rates") else {
            return usual;
        };
        let rate = |value: &toml_edit::Value| {
            value
                .as_integer()
                .and_then(|rate| usize::try_from(rate).ok())
        };
        let rates = item
            .as_array()
            .and_then(|rates| rates.iter().map(rate).collect::<Option<Vec<_>>>());
        let fine = |rates: &Vec<usize>| {
            (1..=8).contains(&rates.len())
                && rates.iter().all(|rate| (10..=1_000_000).contains(rate))
        };
        let rising = |rates: &Vec<usize>| rates.is_sorted_by(|a, b| a < b);
        let fix =
            "one to eight rising rates of 10 to 1000000 messages a second, such as [1000, 10000]"
                .to_owned();
        self.checked(
            "steady.rates",
            rates.filter(|rates| fine(rates) && rising(rates)),
            fix,
            usual,
        )
    }

    fn headers(&mut self, usual: Vec<(String, String)>) -> Vec<(String, String)> {
        let Some(item) = self.find("message.headers") else {
            return usual;
        };
        let text = |(name, item): (&str, &Item)| Some((name.to_owned(), item.as_str()?.to_owned()));
        let headers = item
            .as_table_like()
            .and_then(|headers| headers.iter().map(text).collect::<Option<Vec<_>>>());
        let fine = |headers: &Vec<(String, String)>| {
            headers
                .iter()
                .all(|(name, _)| !name.starts_with("postdate-"))
        };
        let fix = "a table of names and texts, none beginning with postdate-, such as { content-type = \"application/json\" }".to_owned();
        let headers = self.checked("message.headers", headers.filter(fine), fix, usual);
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.len() + value.len() + HEADER_BYTES_BESIDE)
            .sum();
        if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            let what = format!(
                "{} headers of {bytes} bytes are more than the service takes",
                headers.len()
            );
            self.refuse(
                "message.headers",
                what,
                format!("at most {HEADERS_MAX}, of {HEADER_BYTES_MAX} bytes together"),
            );
        }
        headers
    }

    /// Returns the value. If there is none, records a problem and returns the default `usual`.
    fn checked<T>(&mut self, key: &str, value: Option<T>, fix: impl Display, usual: T) -> T {
        value.unwrap_or_else(|| {
            self.refuse(
                key,
                format!("{} is not possible here", self.written(key)),
                fix.to_string(),
            );
            usual
        })
    }

    fn written(&self, key: &str) -> String {
        self.find(key)
            .map_or_else(String::new, |item| item.to_string().trim().to_owned())
    }

    fn refuse(&mut self, key: &str, what: String, fix: String) {
        let place = self.place(self.line(key));
        self.problems.push(Problem {
            key: Some(key.to_owned()),
            ..Problem::without_key(place, what, fix)
        });
    }

    fn whole_file(&mut self, at: Option<usize>, what: String, fix: &str) {
        let place = self.place(at.map(|at| self.line_of(at)));
        let problem = Problem::without_key(place, what, fix);
        self.problems.push(problem);
    }

    fn place(&self, line: Option<usize>) -> String {
        let path = self.path.display();
        line.map_or_else(|| path.to_string(), |line| format!("{path}, line {line}"))
    }

    fn find(&self, key: &str) -> Option<&Item> {
        let mut item = self.document.as_ref()?.as_item();
        for name in key.split('.') {
            item = item.as_table_like()?.get(name)?;
        }
        Some(item)
    }

    /// Line of the key, or of the innermost existing table around it.
    fn line(&self, key: &str) -> Option<usize> {
        let (mut item, mut found) = (self.document.as_ref()?.as_item(), None);
        for name in key.split('.') {
            let Some((name, below)) = item
                .as_table_like()
                .and_then(|table| table.get_key_value(name))
            else {
                break;
            };
            found = name.span().or(found);
            item = below;
        }
        found.map(|span| self.line_of(span.start))
    }

    fn line_of(&self, at: usize) -> usize {
        1 + self
            .text
            .as_bytes()
            .iter()
            .take(at)
            .filter(|byte| **byte == b'\n')
            .count()
    }
}

/// The known key whose last part is most similar to that of `key`, if it is similar enough.
fn meant(key: &str) -> Option<&'static str> {
    let name = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    let own = key.rsplit('.').next().unwrap_or(key);
    let likeness = |known: &&'static str| (strsim::jaro_winkler(name(known), own) * 1e3) as usize;
    KEYS.into_iter()
        .max_by_key(likeness)
        .filter(|known| likeness(known) > 850)
}

/// Collects unknown keys, and keys that should be tables and are not.
fn collect_misshapen(table: &dyn TableLike, above: &str, faults: &mut Vec<String>) {
    for (name, item) in table.iter() {
        let key = if above.is_empty() {
            name.to_owned()
        } else {
            format!("{above}.{name}")
        };
        let holds_keys = KEYS.iter().any(|known| {
            known
                .strip_prefix(&key)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        match item.as_table_like() {
            _ if !KEYS.contains(&key.as_str()) => faults.push(key),
            Some(below) if holds_keys => collect_misshapen(below, &key, faults),
            None if holds_keys => faults.push(key),
            _ => {}
        }
    }
}
