// Decides what runs when, for all queues of all devices, on one of two clocks.
#pragma once

#include "card/operation.h"
#include "card/timeline.h"
#include "card/tracker.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spyre::card {

class Device;
class Queue;

enum class ClockKind { Wall, Virtual };

// One operation on its way through a queue.
struct Item;
// One reading of a program.
struct Fetch;
// A caller that holds its queue while it computes on its own thread.
struct TurnState;

// Executes `capacity` operations at a time, the most urgent first. Guarded by the scheduler's lock.
struct Pipeline {
  Pipeline(PipelineKind kind, int device, unsigned capacity)
      : kind(kind), device(device), capacity(capacity) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  const PipelineKind kind;
  const int device;
  const unsigned capacity;
  unsigned running = 0;
  std::vector<Item*> ready;         // may start; at most one per queue
  std::deque<Item*> assigned;       // started, not yet taken by a worker (wall clock)
  std::vector<std::thread> workers; // started when they are first needed
  unsigned idle_workers = 0;
  std::condition_variable wake;
  bool stopping = false;
};

// The scheduler.
//
// The head of a queue is *ready* when the operation before it has completed, when the operations of other
// queues that its footprint conflicts with have completed, and, for a wait, when the event is reached. Waits
// and signals are decided by whoever made the difference and need no thread; everything else goes to its
// pipeline, where lower priority numbers go first, then earlier submissions, and nobody is passed over for
// ever.
//
// *Wall clock*: real threads. An operation runs on its submitter's thread when it is ready at once, its
// pipeline is free and it is not marked as detached; otherwise on a worker of the pipeline.
//
// *Virtual clock*: discrete events. Time passes when the host submits, asks or waits; operations take what
// the cost model says, and their effects happen at their end, in the order of (end, start), on the thread
// that submits or waits. The same submissions in the same order give the same timeline. Who waits for a
// signal that nobody has submitted is deadlocked.
//
// One lock guards all state. It is never held while an operation runs, while one is destroyed, or while the
// Python lock is taken.
class Scheduler {
public:
  struct Options {
    ClockKind clock = ClockKind::Wall;
    CostModel costs = {};
    unsigned host_workers = 16; // host callbacks at a time, over all devices
    // Called when a thread is about to sleep until another one has done something: gives up what that one may
    // need, for instance an interpreter's lock, and returns what takes it back, or null. The first is called
    // with the scheduler's lock and must not wait, the second without.
    std::function<std::function<void()>()> before_sleep = {};
  };

  explicit Scheduler(const Options& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  const CostModel& costs() const { return options_.costs; }

  // Time since the scheduler was made.
  Ticks now();

  // Blocks until the version of the event is reached. Throws Poisoned if what it marks failed.
  void wait(const Event& event, std::uint64_t version);
  // True when the version of the event is reached.
  bool reached(const Event& event, std::uint64_t version);
  // On the virtual clock, lets time pass until `done` holds or nothing is left to happen; `done` takes no
  // lock of the scheduler. On the wall clock, where time passes by itself, returns at once.
  void pass_time_until(const std::function<bool()>& done);
  // For event backends that signal by themselves: looks again at whoever waits for the event.
  void notify(const Event& event);

  // From now on, keeps an interval for every operation that completes; what was kept before is dropped.
  void start_recording();
  // What was recorded since the start or the last call; the recording goes on. Ordered by start.
  std::vector<Interval> take_recording();
  // Ends the recording and returns it, ordered by start.
  std::vector<Interval> stop_recording();

  // Operations that were submitted and have not completed.
  std::size_t outstanding();
  // What the footprint tracker holds: operations and ranges.
  std::pair<std::size_t, std::size_t> tracked();

  // Ends the threads of a pipeline that nobody uses any more.
  void stop(Pipeline& pipeline);

  // Completes what can complete, fails what waits for a signal that can't come any more, ends all threads
  // and refuses further work. Idempotent.
  void shut_down();

private:
  friend class Queue;
  using Lock = std::unique_lock<std::mutex>;

  // For Queue.
  void submit(Queue& queue, Operation operation);
  std::exception_ptr drain(Queue& queue, std::uint64_t* order);
  bool idle(Queue& queue);
  void close(Queue& queue);
  void abandon(Queue& queue, std::exception_ptr cause);
  void begin_turn(Queue& queue, TurnState& turn);
  void end_turn(Queue& queue, TurnState& turn) noexcept;

  // All with the lock held; `run` gives it up while the operation runs.
  Pipeline* pipeline_of(const Item& item) const;
  Ticks cost_of(const Item& item) const;
  Ticks time_now() const;
  void track(Item& item, const Footprint& footprint);
  bool runs_here(const Queue& queue, const Item& item) const;
  void sleep(Lock& lock, std::condition_variable& until) const; // may wake for nothing
  void settle(Lock& lock);
  void advance(Queue& queue);
  void dispatch(Pipeline& pipeline);
  Item* take_most_urgent(Pipeline& pipeline);
  void begin(Item& item);
  void run(Item& item, Lock& lock);
  void complete(Item& item);
  std::unique_ptr<Item> pop(Queue& queue);
  bool all_idle() const;
  void bury_head(Queue& queue);
  void fail(Queue& queue, std::exception_ptr error);
  void fire(const EventSignal& signal, const std::exception_ptr& failure);
  void expect(const EventSignal& signal, Queue& queue);
  void park(Item& item, const EventWait& wait);
  void resolve_waits(const Event& event);
  void grant(TurnState& turn);
  const EventWait* parked_wait(const Queue& queue) const;
  void look_for_deadlock(Queue& queue);
  std::vector<Queue*> blockers_of(const Queue& queue) const;
  bool give_up_waits(bool shutting_down);
  void fetch_ahead(Device& device);
  void fetch(Item& item, bool ahead);
  void read(Fetch& fetch, const Device& device, bool timed) const; // without the lock
  void work(Pipeline& pipeline);
  void record(const Item& item, PipelineKind kind, Ticks start, Ticks end);
  std::vector<Interval> taken_recording();

  // Virtual clock: runs operations until `done` or, with a limit, until the next end lies after it.
  static constexpr Ticks kNoLimit = std::numeric_limits<Ticks>::max();
  void drive(Lock& lock, const std::function<bool()>& done, Ticks limit = kNoLimit);
  // The host has spent `cost`: runs what ends meanwhile. Nothing for a thread that is inside of an operation.
  void spend(Lock& lock, Ticks cost);

  const Options options_;
  const std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::vector<Queue*> queues_;
  Pipeline host_;
  std::uint64_t next_item_ = 1;
  std::uint64_t errors_ = 0;
  std::deque<Queue*> changed_; // queues whose head has to be looked at
  std::vector<std::pair<Queue*, std::unique_ptr<Item>>> graves_;
  Tracker tracker_;
  std::unordered_map<std::uint64_t, Item*> tracked_; // outstanding operations with a footprint
  using Version = std::pair<const Event*, std::uint64_t>;
  std::map<Version, std::vector<Item*>> waiting_; // for versions that are not reached
  std::map<Version, Queue*> pending_signals_;
  bool recording_ = false;
  std::vector<Interval> intervals_;
  std::vector<std::pair<Queue*, std::shared_ptr<Fetch>>> fetches_; // decided and not yet read
  std::vector<std::exception_ptr> ashes_; // errors nobody will see: destroyed without the lock, as graves are
  bool closed_ = false;
  std::condition_variable quiet_; // something completed while shut_down() waits

  // Virtual clock.
  struct End {
    Ticks time;
    std::uint64_t order;
    Item* item;
    bool operator>(const End& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  Ticks sim_now_ = 0;
  std::uint64_t starts_ = 0;
  std::thread::id driver_{};
  std::condition_variable driven_;
};

} // namespace spyre::card
