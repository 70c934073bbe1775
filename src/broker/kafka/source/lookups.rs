//! Questions of the routes of a client about their partitions. One request answers all that wait, so the
//! routes do not wait for each other's partitions on a broker that does not answer.

use crate::broker::Error;
use crate::broker::kafka::admin::{AdminWorker, WorkerThread};
use futures_util::future::LocalBoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// An answer for each partition of a question.
type Answers<A> = Result<Vec<Result<A, Error>>, Error>;

/// Questions of one kind. `P` names a partition, and `A` is its answer. Each route has one question at
/// most.
pub(super) struct Lookups<P, A> {
    waiting: Arc<Mutex<Waiting<P, A>>>,
    /// Answers all partitions with one request.
    call: fn(&mut WorkerThread, &[P]) -> Answers<A>,
}

struct Waiting<P, A> {
    questions: Vec<Question<P, A>>,
    /// The thread has a batch in its queue, which takes the questions.
    has_batch: bool,
}

struct Question<P, A> {
    partitions: Vec<P>,
    reply: oneshot::Sender<Answers<A>>,
}

impl<P: Send + 'static, A: Send + 'static> Lookups<P, A> {
    pub(super) fn new(call: fn(&mut WorkerThread, &[P]) -> Answers<A>) -> Self {
        let waiting = Waiting {
            questions: Vec::new(),
            has_batch: false,
        };
        Self {
            waiting: Arc::new(Mutex::new(waiting)),
            call,
        }
    }

    /// Asks on the thread of `admin`. The answer may be dropped.
    pub(super) fn ask(
        &self,
        admin: &AdminWorker,
        partitions: Vec<P>,
    ) -> LocalBoxFuture<'static, Answers<A>> {
        let (reply, answer) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.questions.retain(|it| !it.reply.is_closed());
        waiting.questions.push(Question { partitions, reply });
        let has_batch = std::mem::replace(&mut waiting.has_batch, true);
        drop(waiting);
        let mut sent = Ok(());
        if !has_batch {
            let (mut batch, call) = (Batch(Some(self.waiting.clone())), self.call);
            let answer = move |worker: &mut WorkerThread| {
                answer_all(batch.take(), |partitions| call(worker, partitions));
            };
            sent = admin.handle().and_then(|handle| handle.run(answer));
        }
        Box::pin(async move {
            sent?;
            let ended = |_| Err(Error::Fatal("the admin thread has ended".to_owned()));
            answer.await.unwrap_or_else(ended)
        })
    }
}

/// Takes the questions that wait when the thread comes to it. If it is dropped before, they end without
/// an answer. `None` once taken.
struct Batch<P, A>(Option<Arc<Mutex<Waiting<P, A>>>>);

impl<P, A> Batch<P, A> {
    fn take(&mut self) -> Vec<Question<P, A>> {
        let Some(waiting) = self.0.take() else {
            return Vec::new();
        };
        let mut waiting = lock(&waiting);
        waiting.has_batch = false;
        std::mem::take(&mut waiting.questions)
    }
}

impl<P, A> Drop for Batch<P, A> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

fn lock<P, A>(waiting: &Mutex<Waiting<P, A>>) -> MutexGuard<'_, Waiting<P, A>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_all<P, A>(questions: Vec<Question<P, A>>, call: impl FnOnce(&[P]) -> Answers<A>) {
    let (mut partitions, mut replies) = (Vec::new(), Vec::new());
    for question in questions {
        if !question.reply.is_closed() {
            replies.push((question.partitions.len(), question.reply));
            partitions.extend(question.partitions);
        }
    }
    if replies.is_empty() {
        return;
    }
    match call(&partitions) {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for (count, reply) in replies {
                let answers = answers.by_ref().take(count).collect();
                drop(reply.send(Ok(answers)));
            }
        }
        Err(error) => {
            for (_, reply) in replies {
                drop(reply.send(Err(error.clone())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(partitions: &[i32]) -> (Question<i32, i32>, oneshot::Receiver<Answers<i32>>) {
        let (reply, answer) = oneshot::channel();
        let partitions = partitions.to_vec();
        (Question { partitions, reply }, answer)
    }

    #[test]
    fn one_call_answers_each_question_that_waits_with_its_own_partitions() {
        let (one, mut first) = question(&[1, 2]);
        let (dropped, _) = question(&[3]);
        let (two, mut second) = question(&[4]);
        let mut asked = Vec::new();
        answer_all(vec![one, dropped, two], |partitions| {
            asked.push(partitions.to_vec());
            let answer = |it: &i32| match it {
                2 => Err(Error::Unavailable("two".to_owned())),
                it => Ok(it * 10),
            };
            Ok(partitions.iter().map(answer).collect())
        });
        assert_eq!(asked, [[1, 2, 4]]);
        let first = first.try_recv().unwrap().unwrap();
        assert!(matches!(&first[..], [Ok(10), Err(_)]), "{first:?}");
        let second = second.try_recv().unwrap().unwrap();
        assert!(matches!(&second[..], [Ok(40)]), "{second:?}");
    }

    #[test]
    fn questions_of_a_request_that_never_runs_end_and_later_ones_are_asked() {
        let waiting = Arc::new(Mutex::new(Waiting::<i32, i32> {
            questions: Vec::new(),
            has_batch: true,
        }));
        let (one, mut first) = question(&[1]);
        lock(&waiting).questions.push(one);
        let mut ran = Batch(Some(waiting.clone()));
        assert_eq!(ran.take().len(), 1);
        let (two, mut second) = question(&[2]);
        lock(&waiting).questions.push(two);
        drop(ran);
        assert_eq!(lock(&waiting).questions.len(), 1, "of the next batch");
        drop(Batch(Some(waiting.clone())));
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        assert!(!lock(&waiting).has_batch);
    }
}
