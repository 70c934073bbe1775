//! Passwords of SASL logins, which may change while clients run. All clients of the process with the
//! same brokers and user share one.

use rdkafka::config::ClientConfig;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BROKERS: &str = "metadata.broker.list";
const USER: &str = "sasl.username";
const PASSWORD: &str = "sasl.password";

/// By brokers and user. The configuration bounds their number.
static PASSWORDS: Mutex<BTreeMap<(String, String), Arc<SharedPassword>>> =
    Mutex::new(BTreeMap::new());

pub(super) struct SharedPassword {
    user: String,
    /// `None`: as the client was configured.
    changed: Mutex<Option<String>>,
    changes: AtomicU64,
}

impl SharedPassword {
    /// The password of this configuration. If it has changed, the configuration gets the new one.
    /// `None`: the login needs no password.
    pub(super) fn of(config: &mut ClientConfig) -> Option<Arc<Self>> {
        config.get(PASSWORD)?;
        let password = shared(config)?;
        let changed = password.lock().clone();
        if let Some(changed) = changed {
            config.set(PASSWORD, changed);
        }
        Some(password)
    }

    /// Changes with each new password.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The user and the new password, if there is one.
    pub(super) fn changed(&self) -> Option<(String, String)> {
        Some((self.user.clone(), self.lock().clone()?))
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the password of all clients with the brokers and the user of this configuration. They use
/// it for their next connections.
pub(super) fn change(config: &ClientConfig) {
    let new = config.get(PASSWORD).map(str::to_owned);
    if let (Some(new), Some(password)) = (new, shared(config)) {
        *password.lock() = Some(new);
        password.changes.fetch_add(1, Ordering::Release);
    }
}

fn shared(config: &ClientConfig) -> Option<Arc<SharedPassword>> {
    let user = config.get(USER)?.to_owned();
    let brokers = config.get(BROKERS)?.to_owned();
    let mut passwords = PASSWORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || {
        Arc::new(SharedPassword {
            user: user.clone(),
            changed: Mutex::default(),
            changes: AtomicU64::new(0),
        })
    };
    let entry = passwords.entry((brokers, user.clone()));
    Some(entry.or_insert_with(new).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(user: &str, password: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set(BROKERS, "password.example:1")
            .set(USER, user)
            .set(PASSWORD, password);
        config
    }

    #[test]
    fn a_changed_password_reaches_running_and_later_clients_of_the_same_user_only() {
        let running = SharedPassword::of(&mut config("a", "old")).unwrap();
        let other = SharedPassword::of(&mut config("b", "old")).unwrap();
        assert_eq!((running.changes(), running.changed()), (0, None));
        change(&config("a", "new"));
        assert_eq!(running.changes(), 1);
        assert_eq!(running.changed(), Some(("a".into(), "new".into())));
        assert_eq!((other.changes(), other.changed()), (0, None));
        let mut later = config("a", "old");
        SharedPassword::of(&mut later).unwrap();
        assert_eq!(later.get(PASSWORD), Some("new"));
        assert!(SharedPassword::of(&mut ClientConfig::new()).is_none());
    }
}
