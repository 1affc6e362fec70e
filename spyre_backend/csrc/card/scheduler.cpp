#include "card/scheduler.h"

#include "card/device.h"
#include "card/error.h"
#include "card/item.h"
#include "card/mutant.h"
#include "card/queue.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <tuple>

namespace spyre::card {
namespace {

// An operation that was passed over this often goes next, whatever its priority.
constexpr unsigned kPatience = 16;

thread_local const Frame* innermost = nullptr;

bool inside(const Queue& queue) {
  for (const Frame* frame = innermost; frame != nullptr; frame = frame->outer)
    if (frame->queue == &queue)
      return true;
  return false;
}

bool inside(const Pipeline& pipeline) {
  for (const Frame* frame = innermost; frame != nullptr; frame = frame->outer)
    if (frame->pipeline == &pipeline)
      return true;
  return false;
}

} // namespace

Scheduler::Scheduler(const Options& options)
    : options_(options), host_(PipelineKind::Host, -1, std::max(1u, options.host_workers)) {}

Scheduler::~Scheduler() {
  shut_down();
}

// ---------------------------------------------------------------------------------------------- time

Ticks Scheduler::time_now() const {
  if (options_.clock == ClockKind::Virtual)
    return sim_now_;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - epoch_)
      .count();
}

Ticks Scheduler::now() {
  const Lock lock(mutex_);
  return time_now();
}

// ---------------------------------------------------------------------------------- from the host

void Scheduler::submit(Queue& queue, Operation operation) {
  check_transfer(operation);
  auto owned = std::make_unique<Item>();
  Item& item = *owned;
  item.queue = &queue;
  item.kind = operation.body.index();
  const Footprint footprint = footprint_of(operation);
  if (SPYRE_MUTANT(memory_freed_at_submission))
    operation.keeps.reset();
  item.operation = std::move(operation);
  item.pipeline = pipeline_of(item);
  const auto* signal = std::get_if<EventSignal>(&item.operation.body);
  const auto* wait = std::get_if<EventWait>(&item.operation.body);

  Lock lock(mutex_);
  if (queue.closed_) {
    const ShutDown refused("the stream was shut down: no work can be submitted");
    // Nobody else will ever reach this version.
    if (signal != nullptr)
      fire(*signal, std::make_exception_ptr(refused));
    settle(lock);
    throw refused;
  }
  spend(lock, options_.costs.launch);
  item.id = queue.last_ = next_item_++;
  track(item, footprint);
  queue.items_.push_back(std::move(owned));
  if (const auto* compute = std::get_if<Compute>(&item.operation.body);
      compute != nullptr && compute->program.bytes != 0) {
    queue.device_.fetch_unit().queued.emplace(item.id, &item);
    fetch_ahead(queue.device_);
  }
  if (signal != nullptr) {
    if (SPYRE_MUTANT(event_signalled_at_issue))
      signal->event->signal(signal->version, time_now());
    expect(*signal, queue);
  }
  if (wait != nullptr)
    park(item, *wait);
  if (runs_here(queue, item)) {
    queue.in_flight_ = true;
    item.takes_place = item.pipeline->kind != PipelineKind::Host;
    if (item.takes_place)
      ++item.pipeline->running;
    begin(item);
    run(item, lock);
    complete(item);
  } else if (queue.items_.size() == 1) {
    changed_.push_back(&queue);
  }
  settle(lock);
}

// Makes an item follow the outstanding operations of other queues that conflict with what it touches.
void Scheduler::track(Item& item, const Footprint& footprint) {
  if (footprint.empty())
    return;
  item.has_footprint = true;
  for (const Edge& edge : tracker_.admit(item.id, reinterpret_cast<std::uintptr_t>(item.queue), footprint)) {
    if (!item.predecessors.empty() && item.predecessors.back() == edge.from)
      continue;
    item.predecessors.push_back(edge.from);
    tracked_.at(edge.from)->successors.push_back(&item);
  }
  item.blockers = item.predecessors.size();
  tracked_.emplace(item.id, &item);
}

bool Scheduler::runs_here(const Queue& queue, const Item& item) const {
  if (options_.clock == ClockKind::Virtual || item.operation.detached || item.pipeline == nullptr ||
      queue.items_.size() != 1 || queue.in_flight_ || item.blockers != 0 || queue.error_)
    return false;
  return item.pipeline->kind == PipelineKind::Host ||
         (item.pipeline->running < item.pipeline->capacity && item.pipeline->ready.empty());
}

std::exception_ptr Scheduler::drain(Queue& queue, std::uint64_t* order) {
  // A callback that waits for its own queue would wait for itself.
  if (inside(queue))
    return nullptr;
  Lock lock(mutex_);
  const std::uint64_t target = queue.last_;
  const auto done = [&] { return queue.completed_ >= target && queue.outside_ == 0; };
  while (!done()) {
    if (options_.clock == ClockKind::Virtual)
      drive(lock, done);
    // What is left is with another thread.
    if (!done()) {
      ++queue.sleepers_;
      sleep(lock, queue.changed_);
      --queue.sleepers_;
    }
  }
  if (order != nullptr)
    *order = queue.error_order_;
  return std::exchange(queue.error_, nullptr);
}

bool Scheduler::idle(Queue& queue) {
  Lock lock(mutex_);
  spend(lock, options_.costs.event);
  return queue.items_.empty() && !queue.in_flight_ && queue.outside_ == 0;
}

void Scheduler::wait(const Event& event, std::uint64_t version) {
  if (options_.clock == ClockKind::Virtual) {
    Lock lock(mutex_);
    drive(lock, [&] { return event.reached(version); });
    if (!event.reached(version))
      throw Deadlock("the host waits for " + event.name() + " (version " + std::to_string(version) +
                     "), which no submitted operation signals");
  }
  event.block(version);
  if (const auto cause = event.failure(version))
    throw Poisoned("the work an event marks failed: " + text_of(cause), cause);
}

bool Scheduler::reached(const Event& event, std::uint64_t version) {
  if (options_.clock == ClockKind::Virtual) {
    Lock lock(mutex_);
    spend(lock, options_.costs.event);
  }
  return event.reached(version);
}

void Scheduler::pass_time_until(const std::function<bool()>& done) {
  if (options_.clock == ClockKind::Wall)
    return;
  Lock lock(mutex_);
  drive(lock, done);
}

void Scheduler::notify(const Event& event) {
  Lock lock(mutex_);
  resolve_waits(event);
  settle(lock);
}

void Scheduler::abandon(Queue& queue, std::exception_ptr cause) {
  Lock lock(mutex_);
  if (!queue.items_.empty())
    fail(queue, std::move(cause));
  changed_.push_back(&queue);
  settle(lock);
}

void Scheduler::close(Queue& queue) {
  if (inside(queue))
    return;
  Lock lock(mutex_);
  queue.closed_ = true;
  const auto done = [&] { return queue.items_.empty() && !queue.in_flight_ && queue.outside_ == 0; };
  while (!done()) {
    if (const EventWait* wait = parked_wait(queue); wait != nullptr && blockers_of(queue).empty()) {
      fail(queue,
           std::make_exception_ptr(ShutDown("the stream was shut down while it waited for " +
                                            wait_text(*wait) + ", which no submitted operation signals")));
      bury_head(queue);
      changed_.push_back(&queue);
      settle(lock);
      continue;
    }
    if (options_.clock == ClockKind::Virtual)
      drive(lock, done);
    // What is left is with another thread.
    if (!done()) {
      ++queue.sleepers_;
      sleep(lock, queue.changed_);
      --queue.sleepers_;
    }
  }
}

bool Scheduler::all_idle() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const Queue* queue) {
    return queue->items_.empty() && !queue->in_flight_ && queue->outside_ == 0;
  });
}

void Scheduler::shut_down() {
  {
    Lock lock(mutex_);
    closed_ = true;
    for (Queue* queue : queues_)
      queue->closed_ = true;
    while (!all_idle()) {
      if (options_.clock == ClockKind::Virtual)
        drive(lock, [&] { return all_idle(); });
      if (all_idle())
        break;
      const bool moving = std::any_of(queues_.begin(), queues_.end(), [](const Queue* queue) {
        return queue->in_flight_ || queue->outside_ != 0;
      });
      // No signal can come any more when nothing runs and nothing can be submitted.
      if (moving || !give_up_waits(/*shutting_down=*/true))
        sleep(lock, quiet_);
      settle(lock);
    }
  }
  stop(host_);
}

void Scheduler::stop(Pipeline& pipeline) {
  std::vector<std::thread> workers;
  {
    const Lock lock(mutex_);
    pipeline.stopping = true;
    workers.swap(pipeline.workers);
    pipeline.wake.notify_all();
  }
  for (std::thread& worker : workers)
    worker.join();
}

void Scheduler::start_recording() {
  const Lock lock(mutex_);
  recording_ = true;
  intervals_.clear();
}

std::vector<Interval> Scheduler::stop_recording() {
  const Lock lock(mutex_);
  recording_ = false;
  return taken_recording();
}

std::vector<Interval> Scheduler::take_recording() {
  const Lock lock(mutex_);
  return taken_recording();
}

std::vector<Interval> Scheduler::taken_recording() {
  std::vector<Interval> result = std::exchange(intervals_, {});
  std::stable_sort(result.begin(), result.end(), [](const Interval& a, const Interval& b) {
    return std::tie(a.start, a.operation) < std::tie(b.start, b.operation);
  });
  return result;
}

std::size_t Scheduler::outstanding() {
  const Lock lock(mutex_);
  std::size_t count = 0;
  for (const Queue* queue : queues_)
    count += queue->pending_locked();
  return count;
}

std::pair<std::size_t, std::size_t> Scheduler::tracked() {
  const Lock lock(mutex_);
  return {tracker_.outstanding(), tracker_.segments()};
}

// ------------------------------------------------------------------------------------------- turns

void Scheduler::begin_turn(Queue& queue, TurnState& turn) {
  if (inside(queue)) {
    turn.nested = true;
    return;
  }
  Pipeline& compute = queue.device_.compute();
  turn.borrowed = inside(compute);
  Lock lock(mutex_);
  if (queue.closed_)
    throw ShutDown("the stream was shut down: no work can be submitted");
  if (options_.clock == ClockKind::Wall && queue.items_.empty() && !queue.in_flight_ &&
      (turn.touched == nullptr || tracker_.outstanding() == 0) &&
      (turn.borrowed || (compute.running == 0 && compute.ready.empty()))) {
    if (queue.error_)
      std::rethrow_exception(std::exchange(queue.error_, nullptr));
    queue.in_flight_ = queue.direct_ = true;
    if (!turn.borrowed)
      ++compute.running;
    turn.id = queue.last_ = next_item_++;
    if (recording_)
      turn.start = time_now();
  } else {
    auto item = std::make_unique<Item>();
    item->queue = &queue;
    item->pipeline = &compute;
    item->turn = &turn;
    item->takes_place = !turn.borrowed;
    item->operation.body = Compute{};
    item->kind = item->operation.body.index();
    if (turn.label != nullptr)
      item->operation.label = *turn.label;
    turn.item = item.get();
    spend(lock, options_.costs.launch);
    item->id = turn.id = queue.last_ = next_item_++;
    if (turn.touched != nullptr)
      track(*item, *turn.touched);
    queue.items_.push_back(std::move(item));
    if (queue.items_.size() == 1)
      changed_.push_back(&queue);
    settle(lock);
    if (options_.clock == ClockKind::Virtual)
      drive(lock, [&] { return turn.granted; });
    while (!turn.granted)
      sleep(lock, turn.wake);
    if (turn.error)
      std::rethrow_exception(turn.error);
  }
  turn.frame = {&queue, turn.borrowed ? nullptr : &compute, innermost};
  innermost = &turn.frame;
}

void Scheduler::end_turn(Queue& queue, TurnState& turn) noexcept {
  if (turn.nested)
    return;
  innermost = turn.frame.outer;
  Lock lock(mutex_);
  if (turn.item != nullptr) {
    complete(*turn.item);
    if (turn.drives) {
      driver_ = {};
      driven_.notify_all();
    }
  } else {
    Pipeline& compute = queue.device_.compute();
    if (recording_ && turn.start != 0)
      intervals_.push_back({compute.device, compute.kind, queue.id_, turn.id,
                            turn.label == nullptr ? "compute" : *turn.label, turn.start, time_now()});
    queue.in_flight_ = queue.direct_ = false;
    queue.completed_ = turn.id;
    if (!turn.borrowed)
      --compute.running;
    if (!queue.items_.empty())
      changed_.push_back(&queue);
    if (!compute.ready.empty())
      dispatch(compute);
    if (queue.sleepers_ != 0)
      queue.changed_.notify_all();
  }
  settle(lock);
}

void Scheduler::grant(TurnState& turn) {
  turn.granted = true;
  turn.wake.notify_all();
  driven_.notify_all();
}

// ----------------------------------------------------------------------------- what happens next

void Scheduler::sleep(Lock& lock, std::condition_variable& until) const {
  const std::function<void()> resume = options_.before_sleep ? options_.before_sleep() : nullptr;
  until.wait(lock);
  if (!resume)
    return;
  lock.unlock();
  resume();
  lock.lock();
}

void Scheduler::settle(Lock& lock) {
  for (;;) {
    while (!changed_.empty()) {
      Queue* queue = changed_.front();
      changed_.pop_front();
      advance(*queue);
    }
    if (graves_.empty() && ashes_.empty() && fetches_.empty())
      break;
    // Destroying an operation may run anything, for instance free memory or submit; a program may be large.
    auto graves = std::exchange(graves_, {});
    auto ashes = std::exchange(ashes_, {});
    auto fetches = std::exchange(fetches_, {});
    const bool timed = recording_ && options_.clock == ClockKind::Wall;
    lock.unlock();
    for (auto& [queue, fetch] : fetches) {
      read(*fetch, queue->device_, timed);
      fetch.reset();
    }
    for (auto& [queue, item] : graves)
      item.reset();
    ashes.clear();
    lock.lock();
    const auto release = [](Queue& queue) {
      --queue.outside_;
      if (queue.sleepers_ != 0)
        queue.changed_.notify_all();
    };
    for (const auto& [queue, item] : graves)
      release(*queue);
    for (const auto& [queue, fetch] : fetches)
      release(*queue);
  }
  if (closed_)
    quiet_.notify_all();
}

void Scheduler::advance(Queue& queue) {
  while (!queue.in_flight_ && !queue.items_.empty()) {
    Item& item = *queue.items_.front();
    if (item.blockers != 0 || (item.waits && !queue.error_)) {
      const std::uint64_t id = item.id;
      look_for_deadlock(queue);
      if (!queue.items_.empty() && queue.items_.front()->id == id)
        return;
      continue;
    }
    if (item.turn != nullptr && (queue.error_ || !item.takes_place)) {
      TurnState& turn = *item.turn;
      if (queue.error_) {
        turn.error = std::exchange(queue.error_, nullptr);
        turn.item = nullptr;
        bury_head(queue);
        grant(turn);
        continue;
      }
      queue.in_flight_ = true;
      grant(turn);
      return;
    }
    if (const auto* signal = std::get_if<EventSignal>(&item.operation.body)) {
      fire(*signal, queue.error_);
      bury_head(queue);
      continue;
    }
    if (queue.error_) {
      bury_head(queue);
      continue;
    }
    if (std::holds_alternative<EventWait>(item.operation.body)) {
      if (item.fault)
        fail(queue, std::make_exception_ptr(
                        Poisoned("the work an event marks failed: " + text_of(item.fault), item.fault)));
      bury_head(queue);
      continue;
    }
    queue.in_flight_ = true;
    item.pipeline->ready.push_back(&item);
    dispatch(*item.pipeline);
    return;
  }
}

Item* Scheduler::take_most_urgent(Pipeline& pipeline) {
  const auto before = [](const Item* a, const Item* b) {
    const bool a_waited = a->passed_over >= kPatience;
    const bool b_waited = b->passed_over >= kPatience;
    if (a_waited != b_waited)
      return a_waited;
    if (!a_waited && a->queue->priority_ != b->queue->priority_)
      return a->queue->priority_ < b->queue->priority_;
    return a->id < b->id;
  };
  const auto best = std::min_element(pipeline.ready.begin(), pipeline.ready.end(), before);
  Item* item = *best;
  pipeline.ready.erase(best);
  for (Item* other : pipeline.ready)
    if (other->id < item->id || other->passed_over != 0)
      ++other->passed_over;
  return item;
}

void Scheduler::dispatch(Pipeline& pipeline) {
  while (pipeline.running < pipeline.capacity && !pipeline.ready.empty()) {
    Item& item = *take_most_urgent(pipeline);
    ++pipeline.running;
    begin(item);
    if (options_.clock == ClockKind::Virtual) {
      item.end = item.start + cost_of(item);
      ends_.push({item.end, ++starts_, &item});
    } else if (item.turn != nullptr) {
      grant(*item.turn);
    } else {
      pipeline.assigned.push_back(&item);
      if (pipeline.assigned.size() > pipeline.idle_workers && pipeline.workers.size() < pipeline.capacity)
        pipeline.workers.emplace_back([this, &pipeline] { work(pipeline); });
      else
        pipeline.wake.notify_one();
    }
  }
}

void Scheduler::work(Pipeline& pipeline) {
  Lock lock(mutex_);
  for (;;) {
    ++pipeline.idle_workers;
    pipeline.wake.wait(lock, [&] { return !pipeline.assigned.empty() || pipeline.stopping; });
    --pipeline.idle_workers;
    if (pipeline.assigned.empty())
      return;
    Item& item = *pipeline.assigned.front();
    pipeline.assigned.pop_front();
    run(item, lock);
    complete(item);
    settle(lock);
  }
}

void Scheduler::begin(Item& item) {
  item.start = time_now();
  const auto* compute = std::get_if<Compute>(&item.operation.body);
  if (compute == nullptr || compute->program.bytes == 0)
    return;
  if (item.fetch == nullptr)
    fetch(item, /*ahead=*/false);
  Device& device = item.queue->device_;
  FetchUnit& unit = device.fetch_unit();
  unit.queued.erase(item.id);
  if (unit.held == &item)
    unit.held = nullptr;
  fetch_ahead(device);
}

void Scheduler::run(Item& item, Lock& lock) {
  const bool timed = recording_ && options_.clock == ClockKind::Wall;
  const Frame frame{item.queue, item.takes_place ? item.pipeline : nullptr, innermost};
  lock.unlock();
  innermost = &frame;
  std::exception_ptr error;
  std::span<const std::byte> program;
  if (item.fetch != nullptr) {
    read(*item.fetch, item.queue->device_, timed);
    error = item.fetch->fault;
    program = item.fetch->bytes;
  }
  if (timed)
    item.start = time_now();
  try {
    if (!error)
      item.queue->device_.execute(item.operation, program);
  } catch (...) {
    error = std::current_exception();
  }
  if (timed)
    item.end = time_now();
  // What the operation held is free before anybody can know that it has completed.
  item.operation.body = HostCallback{};
  item.operation.keeps.reset();
  if (item.fetch != nullptr)
    item.fetch->bytes = std::vector<std::byte>();
  innermost = frame.outer;
  lock.lock();
  if (error)
    fail(*item.queue, std::move(error));
}

void Scheduler::complete(Item& item) {
  Queue& queue = *item.queue;
  Pipeline& pipeline = *item.pipeline;
  if (item.turn != nullptr && options_.clock == ClockKind::Wall)
    item.end = time_now();
  // A turn inside of another one's compute is part of it; an operation that began before the recording has no
  // end.
  if (recording_ && (item.takes_place || item.turn == nullptr) && item.end >= item.start)
    record(item, pipeline.kind, item.start, item.end);
  if (recording_ && item.fetch != nullptr && item.fetch->end >= item.fetch->start)
    record(item, PipelineKind::Fetch, item.fetch->start, item.fetch->end);
  if (item.takes_place)
    --pipeline.running;
  queue.in_flight_ = false;
  const std::unique_ptr<Item> done = pop(queue);
  changed_.push_back(&queue);
  dispatch(pipeline);
}

std::unique_ptr<Item> Scheduler::pop(Queue& queue) {
  std::unique_ptr<Item> item = std::move(queue.items_.front());
  queue.items_.pop_front();
  queue.completed_ = item->id;
  if (item->has_footprint) {
    tracker_.retire(item->id);
    tracked_.erase(item->id);
    for (Item* successor : item->successors)
      if (--successor->blockers == 0)
        changed_.push_back(successor->queue);
  }
  if (item->waits) {
    const auto& wait = std::get<EventWait>(item->operation.body);
    const auto waiting = waiting_.find({wait.event.get(), wait.version});
    std::erase(waiting->second, item.get());
    if (waiting->second.empty())
      waiting_.erase(waiting);
  }
  FetchUnit& unit = queue.device_.fetch_unit();
  if (!unit.queued.empty() && unit.queued.erase(item->id) != 0) {
    if (unit.held == item.get())
      unit.held = nullptr;
    fetch_ahead(queue.device_);
  }
  if (queue.sleepers_ != 0)
    queue.changed_.notify_all();
  return item;
}

void Scheduler::bury_head(Queue& queue) {
  ++queue.outside_;
  graves_.emplace_back(&queue, pop(queue));
}

void Scheduler::fail(Queue& queue, std::exception_ptr error) {
  if (queue.error_ && !SPYRE_MUTANT(last_error_instead_of_first)) {
    ashes_.push_back(std::move(error));
    return;
  }
  queue.error_ = std::move(error);
  queue.error_order_ = ++errors_;
}

void Scheduler::fire(const EventSignal& signal, const std::exception_ptr& failure) {
  pending_signals_.erase(Version(signal.event.get(), signal.version));
  if (failure)
    signal.event->fail(signal.version, failure, time_now());
  else
    signal.event->signal(signal.version, time_now());
  resolve_waits(*signal.event);
}

// A signal was submitted: who waits for it may now be known to wait for ever.
void Scheduler::expect(const EventSignal& signal, Queue& queue) {
  const Event* event = signal.event.get();
  const auto entry = pending_signals_.emplace(Version(event, signal.version), &queue).first;
  // Waits for lower versions than this one's are about the signal before it, if there is one.
  Version above(event, 0);
  if (entry != pending_signals_.begin() && std::prev(entry)->first.first == event)
    above.second = std::prev(entry)->first.second;
  for (auto waiting = waiting_.upper_bound(above);
       waiting != waiting_.end() && waiting->first <= Version(event, signal.version); ++waiting)
    for (const Item* item : waiting->second)
      changed_.push_back(item->queue);
}

// A wait gets its outcome when it is there, not when its turn comes: what the event knows by then may be of
// later versions.
void Scheduler::park(Item& item, const EventWait& wait) {
  if (wait.event->reached(wait.version)) {
    item.fault = wait.event->failure(wait.version);
    return;
  }
  item.waits = true;
  waiting_[{wait.event.get(), wait.version}].push_back(&item);
}

void Scheduler::resolve_waits(const Event& event) {
  auto waiting = waiting_.lower_bound({&event, 0});
  while (waiting != waiting_.end() && waiting->first.first == &event &&
         event.reached(waiting->first.second)) {
    for (Item* item : waiting->second) {
      item->waits = false;
      item->fault = event.failure(waiting->first.second);
      changed_.push_back(item->queue);
    }
    waiting = waiting_.erase(waiting);
  }
  driven_.notify_all();
}

void Scheduler::record(const Item& item, PipelineKind kind, Ticks start, Ticks end) {
  const std::string& label = item.operation.label;
  intervals_.push_back({item.queue->device_.index(), kind, item.queue->id_, item.id,
                        label.empty() ? label_of(item.kind) : label, start, end});
}

// -------------------------------------------------------------------------------------- fetch unit

void Scheduler::fetch(Item& item, bool ahead) {
  const Span& program = std::get<Compute>(item.operation.body).program;
  item.fetch = std::make_shared<Fetch>(program);
  if (options_.clock == ClockKind::Virtual) {
    item.fetch->start = sim_now_;
    item.fetch->end = sim_now_ + CostModel::at_rate(program.bytes, options_.costs.memory_rate);
  } else if (!ahead) {
    // Whoever runs the Compute reads first.
    return;
  }
  ++item.queue->outside_;
  fetches_.emplace_back(item.queue, item.fetch);
}

void Scheduler::read(Fetch& fetch, const Device& device, bool timed) const {
  std::call_once(fetch.once, [&] {
    if (timed)
      fetch.start = time_now();
    try {
      fetch.bytes = device.read_program(fetch.program);
    } catch (...) {
      fetch.fault = std::current_exception();
    }
    if (timed)
      fetch.end = time_now();
  });
}

void Scheduler::fetch_ahead(Device& device) {
  FetchUnit& unit = device.fetch_unit();
  if (unit.held != nullptr || unit.queued.empty())
    return;
  Item& next = *unit.queued.begin()->second;
  if (std::get<Compute>(next.operation.body).fetch_barrier && !SPYRE_MUTANT(barrier_dropped))
    return;
  fetch(next, /*ahead=*/true);
  unit.held = &next;
}

// ----------------------------------------------------------------------------------- virtual clock

void Scheduler::spend(Lock& lock, Ticks cost) {
  if (options_.clock == ClockKind::Wall || driver_ == std::this_thread::get_id())
    return;
  const Ticks until = sim_now_ + cost;
  drive(lock, [] { return false; }, until);
  sim_now_ = std::max(sim_now_, until);
}

void Scheduler::drive(Lock& lock, const std::function<bool()>& done, Ticks limit) {
  const auto self = std::this_thread::get_id();
  while (!done()) {
    if (driver_ != std::thread::id{} && driver_ != self) {
      sleep(lock, driven_);
      continue;
    }
    if (ends_.empty()) {
      if (limit != kNoLimit || !give_up_waits(closed_))
        return;
      settle(lock);
      continue;
    }
    const End next = ends_.top();
    if (next.time > limit)
      return;
    ends_.pop();
    sim_now_ = std::max(sim_now_, next.time);
    const std::thread::id outer = driver_;
    if (next.item->turn != nullptr) {
      // Time stands still until the caller, on its own thread, has computed.
      TurnState& turn = *next.item->turn;
      turn.drives = outer == std::thread::id{};
      if (turn.drives)
        driver_ = turn.thread;
      grant(turn);
      continue;
    }
    driver_ = self;
    run(*next.item, lock);
    complete(*next.item);
    settle(lock);
    driver_ = outer;
    driven_.notify_all();
  }
}

} // namespace spyre::card
