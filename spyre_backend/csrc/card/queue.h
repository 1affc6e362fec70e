// Ordered queues: one per stream of a device.
#pragma once

#include "card/operation.h"
#include "card/scheduler.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace spyre::card {

class Device;

// What the current thread is inside of, innermost first.
struct Frame {
  const Queue* queue = nullptr;
  const Pipeline* pipeline = nullptr;
  const Frame* outer = nullptr;
};

// A caller that holds its queue while it computes on its own thread. Guarded by the scheduler's lock.
struct TurnState {
  bool nested = false;   // the thread holds the queue already
  bool borrowed = false; // the thread holds the compute pipeline already
  bool granted = false;
  bool drives = false;                // the virtual clock stands still meanwhile
  const Footprint* touched = nullptr; // what the caller declares, if it does
  const std::string* label = nullptr; // name in timelines
  std::thread::id thread = std::this_thread::get_id();
  Item* item = nullptr; // null when nothing had to be waited for
  std::uint64_t id = 0;
  Ticks start = 0;
  std::exception_ptr error = {};
  std::condition_variable wake = {};
  Frame frame = {};
};

// Executes operations of one stream in the order of submission.
//
// The first error stays with the queue: operations after it are skipped, events after it fail, and the next
// synchronize() throws it and so makes the queue usable again. Thread-safe. Its scheduler and its device
// outlive it.
class Queue {
public:
  // Lower priority numbers go first where queues compete for a pipeline.
  Queue(Scheduler& scheduler, Device& device, std::int64_t id, int priority = 0);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  std::int64_t id() const { return id_; }
  int priority() const { return priority_; }
  Device& device() const { return device_; }
  Scheduler& scheduler() const { return scheduler_; }

  // Throws ShutDown after shut_down(), and InvalidArgument for a transfer that does not start at a stick.
  void submit(Operation operation) { scheduler_.submit(*this, std::move(operation)); }

  // Runs `call` on the compute pipeline, on the caller's thread, after everything submitted before, and
  // returns when it is done. What `call` throws goes to the caller and does not fail the queue; an error that
  // the queue had before is thrown instead of running it. May be nested in the same thread.
  template <class Call> void compute(Call&& call) {
    const Turn turn(*this, nullptr, nullptr);
    call();
  }
  // The same for a call that touches the given memory: it also runs after operations of other queues that
  // were submitted before and conflict with that. `label` is its name in timelines.
  template <class Call> void compute(const Footprint& touched, const std::string& label, Call&& call) {
    const Turn turn(*this, &touched, &label);
    call();
  }

  // True when every operation submitted so far has completed.
  bool idle() const { return scheduler_.idle(const_cast<Queue&>(*this)); }
  // Waits for everything submitted so far, then throws the first error since the last call, if there was one.
  void synchronize() {
    if (const auto error = drain())
      std::rethrow_exception(error);
  }
  // Waits for everything submitted so far and returns the first error instead of throwing it; the queue is
  // usable again. `order`, if given, receives the error's place in the order of all errors of the scheduler.
  // A callback that drains its own queue returns at once.
  std::exception_ptr drain(std::uint64_t* order = nullptr) { return scheduler_.drain(*this, order); }
  // The first error since the last synchronisation; null if there is none.
  std::exception_ptr error() const;
  // Operations submitted and not completed; one that computes on its caller's thread counts too.
  std::size_t pending() const;

  // Gives up what is queued and has not started: it fails with `cause`, and so does who waits for it.
  void abandon(std::exception_ptr cause) { scheduler_.abandon(*this, std::move(cause)); }
  // Completes what is queued and refuses further work. Idempotent.
  void shut_down() { scheduler_.close(*this); }

private:
  friend class Scheduler;

  // Holds the queue and the compute pipeline for the current thread.
  class Turn {
  public:
    Turn(Queue& queue, const Footprint* touched, const std::string* label) : queue_(queue) {
      state_.touched = touched;
      state_.label = label;
      queue.scheduler_.begin_turn(queue, state_);
    }
    ~Turn() { queue_.scheduler_.end_turn(queue_, state_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

  private:
    Queue& queue_;
    TurnState state_;
  };

  Scheduler& scheduler_;
  Device& device_;
  const std::int64_t id_;
  const int priority_;

  std::size_t pending_locked() const { return items_.size() + (direct_ ? 1 : 0); }

  // Guarded by the scheduler's lock.
  std::deque<std::unique_ptr<Item>> items_;
  bool in_flight_ = false;      // the head is with its pipeline, or a turn holds the queue
  bool direct_ = false;         // a turn holds the queue that was granted without becoming an item
  unsigned outside_ = 0;        // things done for it without the lock: programs read, operations destroyed
  std::uint64_t last_ = 0;      // number of the latest operation submitted
  std::uint64_t completed_ = 0; // number of the latest operation completed
  std::exception_ptr error_;
  std::uint64_t error_order_ = 0;
  bool closed_ = false;
  int sleepers_ = 0; // threads in changed_.wait: nobody is notified for nothing
  std::condition_variable changed_;
};

} // namespace spyre::card
