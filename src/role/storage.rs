//! Where a process keeps what waits.

use crate::clock::WallClock;
use crate::config::{self, Config};
use crate::store::embedded::{self, Embedded};
use crate::store::metered::Metered;
use crate::store::redis::{self, Redis};
use crate::store::{self, Store};
use anyhow::{Context, Result};
use std::rc::Rc;

/// Where the loops of this process get their stores from.
pub(crate) enum Storage {
    /// A connection each.
    Redis(redis::Options),
    /// One for all.
    Embedded(Embedded),
}

impl Storage {
    /// Opens an embedded store, which is this process' alone from then on.
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let deployment = config.deployment.clone();
        Ok(match &config.store {
            config::Store::Redis(redis) => Self::Redis(redis::Options {
                url: redis.url.expose().to_owned(),
                username: redis.username.clone(),
                password: redis.password.as_ref().map(|password| password.expose().to_owned()),
                deployment,
            }),
            config::Store::Embedded(embedded) => {
                let options = embedded::Options { path: embedded.path.clone(), deployment };
                Self::Embedded(Embedded::open(&options, WallClock).context("store.embedded")?)
            }
        })
    }

    pub(crate) async fn connect(&self) -> Result<Rc<dyn Store>, store::Error> {
        Ok(match self {
            Self::Redis(options) => Rc::new(Metered::new(Redis::connect(options).await?)),
            Self::Embedded(embedded) => Rc::new(Metered::new(embedded.clone())),
        })
    }
}
