// Ordered queues: one per stream of a device.
#pragma once

#include "card/operation.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace spyre::card {

class Device;

// Executes operations of one stream in the order of submission.
//
// An operation runs on the submitter's thread when nothing is queued before it, it does not have to wait and
// it is not marked as detached; otherwise on the queue's own worker, which is started the first time it is
// needed. Order, errors and events are the same either way.
//
// The first error stays with the queue: operations after it are skipped, events after it fail, and the next
// synchronize() throws it and so makes the queue usable again. Thread-safe.
class Queue {
public:
  explicit Queue(Device& device);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Throws ShutDown after shut_down().
  void submit(Operation operation);

  // Runs `call` on the compute pipeline, on the caller's thread, after everything submitted before, and
  // returns when it is done. What `call` throws goes to the caller and does not fail the queue. May be nested
  // in the same thread.
  template <class Call> void compute(Call&& call) {
    const Turn turn(*this);
    call();
  }

  // True when every operation submitted so far has completed.
  bool idle() const;
  // Waits until the queue is idle, then throws the first error since the last call, if there was one.
  void synchronize();
  // Waits until the queue is idle and returns the first error instead of throwing it; the queue is usable
  // again.
  std::exception_ptr drain();
  // The first error since the last synchronisation; null if there is none.
  std::exception_ptr error() const;

  // Completes what is queued, ends the worker and refuses further work. Idempotent.
  void shut_down();

private:
  // Holds the queue and the compute pipeline for the current thread.
  class Turn {
  public:
    explicit Turn(Queue& queue);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

  private:
    Queue& queue_;
    const bool nested_;
  };

  bool may_run_here(const Operation& operation) const;
  void finish();
  void execute(Operation& operation);
  void work();

  Device& device_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Operation> waiting_;
  bool busy_ = false;        // an operation is running, on whichever thread
  std::thread::id runner_{}; // that thread
  mutable int sleepers_ = 0; // threads in changed_.wait: nobody is notified for nothing
  bool closed_ = false;
  std::exception_ptr error_;
  std::thread worker_;
};

} // namespace spyre::card
