//! The writer thread: owns the shards. It runs the waiting calls one after the other, writes their
//! changes with one commit, and answers all of them when the commit is on disk. More calls
//! therefore share one wait for the disk.
//!
//! After an error the next call opens the folder again and loads the shards from disk.

use super::data_dir::DataDir;
use super::shards::Shards;
use super::tables::{FileSizes, SharedTables, Tables, WriteBatch};
use crate::clock::Clock;
use crate::limit;
use crate::store::Error;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;

/// Runs a call on the shards. The returned function answers the caller after the commit.
pub(super) type WriteCall =
    Box<dyn FnOnce(Result<(&mut Shards, &mut WriteBatch<'_>), Error>) -> Complete + Send>;
pub(super) type Complete = Box<dyn FnOnce(Result<(), Error>)>;

pub(super) struct Writer {
    pub(super) folder: DataDir,
    pub(super) sizes: FileSizes,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) calls: Receiver<WriteCall>,
    pub(super) shared: Arc<SharedTables>,
    /// `None`: the folder must be opened again, because the shards may differ from the disk.
    pub(super) tables: Option<Tables>,
    pub(super) shards: Shards,
}

impl Writer {
    /// Runs until all handles on the store are gone.
    pub(super) fn serve(mut self) {
        while let Some(first) = self.calls.blocking_recv() {
            self.run_batch(first);
        }
        self.close();
    }

    /// Runs the call and those behind it with one commit, up to the limits of a commit.
    fn run_batch(&mut self, first: WriteCall) {
        let tables = match self.open() {
            Ok(tables) => tables,
            Err(error) => return first(Err(error))(Ok(())),
        };
        let mut batch = tables.begin(self.clock.now());
        let mut answers = vec![first(Ok((&mut self.shards, &mut batch)))];
        while batch.is_open()
            && answers.len() < limit::EMBEDDED_QUEUED_CALLS_MAX
            && let Ok(call) = self.calls.try_recv()
        {
            answers.push(call(Ok((&mut self.shards, &mut batch))));
        }
        let committed = batch.commit();
        self.shared.set_stored(self.shards.size());
        if let Err(error) = &committed {
            tracing::error!(%error, "the embedded store failed: opening the folder again");
        }
        let is_committed = committed.is_ok();
        for answer in answers {
            answer(committed.clone());
        }
        drop(tables);
        if !is_committed {
            self.close();
        }
    }

    /// Opens the folder and loads the shards, unless it is open.
    fn open(&mut self) -> Result<Tables, Error> {
        if let Some(tables) = &self.tables {
            return Ok(tables.clone());
        }
        let opened = self.folder.open(&self.sizes).and_then(|tables| {
            let shards = self.shards.reload(&tables)?;
            Ok((tables, shards))
        });
        let (tables, shards) = opened.map_err(Error::from).inspect_err(|error| {
            tracing::warn!(
                %error,
                "the embedded store's folder cannot be opened; the next call tries again"
            );
        })?;
        self.shards = shards;
        self.tables = Some(tables.clone());
        self.shared.set(Some(tables.clone()));
        Ok(tables)
    }

    /// Closes the database, so that it can be opened again. Waits for threads that read it.
    fn close(&mut self) {
        self.tables = None;
        self.shared.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use tokio::sync::mpsc;

    /// A call that writes one row.
    fn call(bytes: usize) -> WriteCall {
        Box::new(move |open| {
            let (_, batch) = open.expect("the folder is open");
            batch.put(b"i".to_vec(), vec![0; bytes]);
            Box::new(|committed| committed.expect("the disk has room"))
        })
    }

    #[test]
    fn a_commit_takes_calls_up_to_a_number_and_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = DataDir::lock(folder.path()).unwrap();
        let tables = data_dir.open(&FileSizes::DEFAULT).unwrap();
        let (queue, calls) = mpsc::channel(200);
        let mut writer = Writer {
            folder: data_dir,
            sizes: FileSizes::DEFAULT,
            clock: Arc::new(WallClock),
            calls,
            shared: Arc::new(SharedTables::new(tables.clone())),
            tables: Some(tables),
            shards: Shards::new("test".into()),
        };
        for (bytes, calls) in [
            (1, limit::EMBEDDED_QUEUED_CALLS_MAX),
            (limit::EMBEDDED_COMMIT_BYTES_MAX / 4, 4),
            (limit::EMBEDDED_COMMIT_BYTES_MAX, 1),
        ] {
            for _ in 1..100 {
                assert!(queue.try_send(call(bytes)).is_ok());
            }
            writer.run_batch(call(bytes));
            assert_eq!(100 - writer.calls.len(), calls, "{bytes} bytes each");
            while writer.calls.try_recv().is_ok() {}
        }
    }
}
