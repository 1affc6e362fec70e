// Order, errors and events, on real threads.
#include "card/staging.h"
#include "harness.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <vector>

using namespace spyre::card;
using namespace spyre::card::test;

namespace {

// What the recorded intervals of a random mix must show: operations of a queue end before the next one
// starts, in the order of submission, and so do those of a pipeline that executes one at a time, whatever
// their queues.
void check_intervals(const std::vector<Interval>& timeline) {
  std::map<std::int64_t, const Interval*> last_of_queue;
  std::map<PipelineKind, const Interval*> last_of_pipeline;
  for (const Interval& interval : timeline) {
    const Interval*& in_queue = last_of_queue[interval.queue];
    CHECK(in_queue == nullptr ||
          (in_queue->operation < interval.operation && in_queue->end <= interval.start));
    in_queue = &interval;
    if (interval.pipeline == PipelineKind::Host)
      continue;
    const Interval*& on_pipeline = last_of_pipeline[interval.pipeline];
    CHECK(on_pipeline == nullptr || on_pipeline->end <= interval.start);
    on_pipeline = &interval;
  }
}

// Submits random operations of every kind, size and cost to four queues. Each queue notes the order in which
// its callbacks ran; memory must be as if everything had run in the order of submission, because conflicts
// keep it.
void random_mix(ClockKind clock, unsigned seed) {
  constexpr std::size_t kBytes = 64 * 1024;
  Card card(clock);
  Block* memory = card.device.memory().allocate(kBytes);
  std::vector<Queue*> queues;
  for (int i = 0; i < 4; ++i)
    queues.push_back(&card.open(i % 3 - 1));
  std::mt19937 random(seed);
  std::vector<char> host(kBytes);
  for (char& byte : host)
    byte = static_cast<char>(random());
  std::vector<char> model(kBytes, 0);
  queues[0]->submit({Fill{{memory->position, kBytes}, 0}});
  struct Read {
    std::vector<char> seen, expected;
  };
  std::deque<Read> reads;
  std::mutex mutex;
  std::vector<std::vector<int>> order(queues.size());
  std::vector<int> next(queues.size(), 0);
  std::vector<std::shared_ptr<Event>> events;
  std::size_t executed = 1;
  card.device.synchronize();
  card.scheduler.start_recording();
  for (int step = 0; step < 1'500; ++step) {
    const std::size_t which = random() % queues.size();
    Queue& queue = *queues[which];
    const auto note = [&mutex, &order, which, number = next[which]++] {
      const std::lock_guard lock(mutex);
      order[which].push_back(number);
    };
    Operation operation;
    const std::size_t offset = random() % (kBytes / kStickBytes) * kStickBytes;
    // Most are small; some are as large as there is room.
    const std::size_t bytes =
        1 + random() % std::min<std::size_t>(random() % 8 == 0 ? kBytes : 512, kBytes - offset);
    const Span span{memory->position + offset, bytes};
    const unsigned kind = random() % 8;
    switch (kind) {
    case 0:
      operation = {CopyToDevice{host.data() + kBytes - bytes, span}};
      std::copy_n(host.end() - static_cast<std::ptrdiff_t>(bytes), bytes,
                  model.begin() + static_cast<std::ptrdiff_t>(offset));
      break;
    case 1:
      reads.push_back({std::vector<char>(bytes), {model.data() + offset, model.data() + offset + bytes}});
      operation = {CopyToHost{span, reads.back().seen.data()}};
      break;
    case 2:
      operation = {Fill{span, static_cast<std::uint8_t>(step)}};
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), bytes, static_cast<char>(step));
      break;
    case 3:
      events.push_back(event());
      operation = signal(events.back());
      break;
    case 4:
      // Waits for what was recorded before: never a cycle.
      operation =
          events.empty() ? signal(events.emplace_back(event())) : wait(events[random() % events.size()]);
      break;
    case 5:
      operation = {Compute{[](auto) {}}};
      break;
    default:
      operation = callback([] {});
    }
    executed += kind == 3 || kind == 4 ? 1 : 2;
    operation.detached = random() % 3 == 0;
    operation.cost = random() % 20'000;
    queue.submit(std::move(operation));
    queue.submit(callback(note));
    if (random() % 200 == 0)
      queue.synchronize();
    if (random() % 50 == 0) {
      queue.compute(note);
      next[which]++;
      ++executed;
    }
  }
  card.device.synchronize();
  CHECK(card.device.idle() && card.scheduler.outstanding() == 0);
  CHECK((card.scheduler.tracked() == std::pair<std::size_t, std::size_t>(0, 0)));
  for (const std::vector<int>& numbers : order)
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
  const std::vector<Interval> timeline = card.scheduler.stop_recording();
  CHECK(timeline.size() + 1 == executed);
  check_intervals(timeline);
  for (const Read& read : reads)
    CHECK(read.seen == read.expected);
  std::vector<char> final(kBytes);
  queues[0]->submit({CopyToHost{{memory->position, kBytes}, final.data()}});
  queues[0]->synchronize();
  CHECK(final == model);
  card.device.memory().free(memory);
}

} // namespace

TEST(R1_2_S_1_order_is_kept_for_any_mix_on_the_wall_clock) {
  for (unsigned seed = 1; seed <= 4; ++seed)
    random_mix(ClockKind::Wall, seed);
}

TEST(R1_2_S_1_order_is_kept_for_any_mix_on_the_virtual_clock) {
  for (unsigned seed = 1; seed <= 4; ++seed)
    random_mix(ClockKind::Virtual, seed);
}

TEST(a_small_operation_runs_on_the_submitting_thread) {
  Card card;
  std::thread::id runner;
  card.device.default_queue().submit(callback([&] { runner = std::this_thread::get_id(); }));
  CHECK(runner == std::this_thread::get_id());
}

TEST(S_1_compute_never_overlaps) {
  Card card;
  std::atomic<int> running{0};
  std::atomic<bool> overlapped{false};
  const auto kernel = [&] {
    if (running.fetch_add(1) != 0)
      overlapped = true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    running.fetch_sub(1);
  };
  std::vector<Queue*> queues;
  for (int i = 0; i < 4; ++i)
    queues.push_back(&card.open());
  for (int i = 0; i < 50; ++i)
    for (Queue* queue : queues)
      queue->submit({Compute{[&](auto) { kernel(); }}, {}, /*detached=*/i % 2 == 0});
  std::thread direct([&] {
    for (int i = 0; i < 50; ++i)
      card.device.default_queue().compute(kernel);
  });
  direct.join();
  card.device.synchronize();
  CHECK(!overlapped);
}

TEST(S_2_transfers_overlap_compute) {
  // Both must be in flight at the same time for either to end.
  Card card;
  Block* block = card.device.memory().allocate(128);
  Gate gate;
  Queue& compute = card.open();
  compute.submit(gate.compute());
  char bytes[128] = {};
  card.device.default_queue().submit({CopyToDevice{bytes, {block->position, 128}}, {}, /*detached=*/true});
  card.device.default_queue().synchronize();
  CHECK(!compute.idle());
  gate.open();
  compute.synchronize();
  card.device.memory().free(block);
}

TEST(R4_5_conflicting_operations_of_different_streams_keep_their_order) {
  Card card;
  Block* block = card.device.memory().allocate(1024);
  Gate gate;
  Queue& writer = card.open();
  Queue& reader = card.open();
  Queue& other = card.open();
  std::vector<char> ones(512, 1), seen(512, 0), beside(512, 7);
  writer.submit(gate.operation());
  writer.submit({CopyToDevice{ones.data(), {block->position, 512}}});
  reader.submit({CopyToHost{{block->position, 512}, seen.data()}});
  other.submit({CopyToHost{{block->position + 512, 512}, beside.data()}});
  other.synchronize();
  CHECK(!reader.idle());
  gate.open();
  reader.synchronize();
  CHECK(seen == ones);
  writer.synchronize();
  card.device.memory().free(block);
}

TEST(R4_6_a_reused_range_stays_behind_its_outstanding_reader) {
  Card card;
  Block* block = card.device.memory().allocate(512);
  const Span span{block->position, 512};
  std::vector<char> old(512, 3), fresh(512, 4), seen(512);
  Gate gate;
  Queue& first = card.open();
  Queue& second = card.open();
  first.submit({CopyToDevice{old.data(), span}});
  first.submit(gate.operation());
  first.submit({CopyToHost{span, seen.data()}});
  card.device.memory().free(block);
  Block* again = card.device.memory().allocate(512);
  CHECK(again->position == span.position);
  second.submit({CopyToDevice{fresh.data(), span}});
  CHECK(!second.idle());
  gate.open();
  card.device.synchronize();
  CHECK(seen == old);
  card.device.memory().free(again);
}

TEST(R4_9_a_signal_fires_after_everything_before_it) {
  Card card;
  Gate gate;
  Queue& queue = card.device.default_queue();
  const auto mark = event();
  queue.submit(gate.operation());
  queue.submit(signal(mark));
  CHECK(!card.scheduler.reached(*mark, mark->version()));
  gate.open();
  card.scheduler.wait(*mark, 1);
  CHECK(mark->reached(1));
  queue.synchronize();
}

TEST(R4_10_a_wait_means_the_version_at_call_time) {
  Card card;
  Gate first, second;
  Queue& producer = card.open();
  Queue& consumer = card.open();
  const auto mark = event();
  producer.submit(first.operation());
  producer.submit(signal(mark));
  consumer.submit(wait(mark));
  producer.submit(second.operation());
  producer.submit(signal(mark));
  first.open();
  consumer.synchronize();
  CHECK(!producer.idle() && !mark->reached(2));
  second.open();
  card.device.synchronize();
}

TEST(a_wait_owns_its_event) {
  Card card;
  Gate gate;
  Queue& producer = card.open();
  Queue& consumer = card.open();
  producer.submit(gate.operation());
  {
    const auto mark = event();
    producer.submit(signal(mark));
    consumer.submit(wait(mark));
  }
  CHECK(!consumer.idle());
  gate.open();
  consumer.synchronize();
}

// An event as a card would keep it: a signal is only asked for, and is there when the hardware says so.
class HardwareEvent final : public Event {
public:
  std::uint64_t announce() override { return state_.announce(); }
  std::uint64_t version() const override { return state_.version(); }
  void signal(std::uint64_t version, Ticks time) override { asked_.push_back({version, time, nullptr}); }
  void fail(std::uint64_t version, std::exception_ptr cause, Ticks time) override {
    asked_.push_back({version, time, std::move(cause)});
  }
  bool reached(std::uint64_t version) const override { return state_.reached(version); }
  std::exception_ptr failure(std::uint64_t version) const override { return state_.failure(version); }
  void block(std::uint64_t version) const override { state_.block(version); }
  Ticks time() const override { return state_.time(); }
  std::string name() const override { return "hardware event"; }

  // What was asked for so far becomes true.
  void land() {
    for (const auto& [version, time, cause] : std::exchange(asked_, {}))
      cause ? state_.fail(version, cause, time) : state_.signal(version, time);
  }
  std::size_t asked() const { return asked_.size(); }

private:
  struct Asked {
    std::uint64_t version;
    Ticks time;
    std::exception_ptr cause;
  };
  std::vector<Asked> asked_;
  SoftwareEvent state_;
};

TEST(R4_23_events_may_be_signalled_by_hardware) {
  struct Hardware final : EventBackend {
    std::shared_ptr<Event> create(std::string) override { return std::make_shared<HardwareEvent>(); }
  };
  Card card;
  Hardware hardware;
  const auto mark = std::static_pointer_cast<HardwareEvent>(hardware.create({}));
  Queue& producer = card.open();
  Queue& consumer = card.open();
  bool ran = false;
  producer.submit(signal(mark));
  consumer.submit(wait(mark));
  consumer.submit(callback([&] { ran = true; }));
  producer.synchronize();
  CHECK(mark->asked() == 1 && !ran && !consumer.idle() && !card.scheduler.reached(*mark, 1));
  mark->land();
  card.scheduler.notify(*mark);
  card.scheduler.wait(*mark, 1);
  consumer.synchronize();
  CHECK(ran);
  // A failure travels on in the same way.
  producer.submit(throwing("on the card"));
  producer.submit(signal(mark));
  consumer.submit(wait(mark));
  CHECK(producer.drain() != nullptr && consumer.pending() == 1);
  mark->land();
  card.scheduler.notify(*mark);
  CHECK(contains(message_of<Poisoned>([&] { consumer.synchronize(); }), "on the card"));
}

TEST(R4_20_waiting_streams_take_no_thread_and_block_nobody) {
  // More waiting queues than there are workers of any kind, all behind one gate; another queue goes on.
  Card card;
  Gate gate;
  Queue& producer = card.open();
  const auto mark = event();
  producer.submit(gate.operation());
  producer.submit(signal(mark));
  std::atomic<int> done{0};
  std::vector<Queue*> consumers;
  for (int i = 0; i < 200; ++i) {
    consumers.push_back(&card.open());
    consumers.back()->submit(wait(mark));
    consumers.back()->submit(callback([&] { ++done; }));
  }
  card.device.default_queue().submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/true});
  card.device.default_queue().synchronize();
  CHECK(done == 1);
  gate.open();
  card.device.synchronize();
  CHECK(done == 201);
}

TEST(R1_8_memory_lives_until_its_operation_has_completed) {
  Card card;
  Gate gate;
  Queue& queue = card.device.default_queue();
  auto memory = std::make_shared<int>(5);
  const std::weak_ptr<int> watch = memory;
  queue.submit(gate.operation());
  queue.submit({HostCallback{[] {}}, std::move(memory)});
  CHECK(!watch.expired());
  gate.open();
  queue.synchronize();
  CHECK(watch.expired());
}

TEST(R1_8_memory_of_skipped_operations_is_released) {
  Card card;
  Queue& queue = card.device.default_queue();
  auto memory = std::make_shared<int>(5);
  const std::weak_ptr<int> watch = memory;
  queue.submit(throwing("first"));
  queue.submit({HostCallback{[] {}}, std::move(memory)});
  CHECK(queue.drain() != nullptr && watch.expired());
}

TEST(destroying_an_operation_may_submit) {
  Card card;
  Queue& queue = card.device.default_queue();
  bool ran = false;
  queue.submit({HostCallback{[] {}}, std::shared_ptr<int>(new int(1), [&](int* number) {
                  delete number;
                  card.open().submit(callback([&] { ran = true; }));
                })});
  card.device.synchronize();
  CHECK(ran);
}

TEST(R4_11_waiting_for_failed_work_fails) {
  Card card;
  Queue& producer = card.open();
  Queue& consumer = card.open();
  Queue& third = card.open();
  const auto mark = event(), next = event();
  producer.submit(throwing("the first cause"));
  producer.submit(signal(mark));
  consumer.submit(wait(mark));
  bool ran = false;
  consumer.submit(callback([&] { ran = true; }));
  consumer.submit(signal(next));
  third.submit(wait(next));
  CHECK(contains(message_of<Poisoned>([&] { consumer.synchronize(); }), "the first cause"));
  CHECK(contains(message_of<Poisoned>([&] { third.synchronize(); }), "the first cause"));
  CHECK(contains(message_of<Poisoned>([&] { card.scheduler.wait(*mark, 1); }), "the first cause"));
  CHECK(!ran);
}

TEST(R4_10_R4_11_a_version_that_failed_stays_failed_when_the_event_is_recorded_again) {
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& producer = card.open();
    Queue& early = card.open();
    Queue& late = card.open();
    Gate gate;
    const auto mark = event("mark");
    if (clock == ClockKind::Wall)
      early.submit(gate.operation());
    producer.submit(throwing("the first cause"));
    producer.submit(signal(mark));
    early.submit(wait(mark));
    message_of<std::runtime_error>([&] { producer.synchronize(); });
    producer.submit(signal(mark));
    producer.synchronize();
    gate.open();
    CHECK(contains(message_of<Poisoned>([&] { early.synchronize(); }), "the first cause"));
    late.submit({EventWait{mark, 1}});
    CHECK(contains(message_of<Poisoned>([&] { late.synchronize(); }), "the first cause"));
    late.submit(wait(mark));
    late.synchronize();
  }
}

TEST(R4_10_R4_11_waits_keep_their_outcome_however_often_the_event_is_recorded_again) {
  // Half of the versions fail; each wait is behind a gate until all have been recorded.
  constexpr std::uint64_t kVersions = 2'000;
  Card card;
  Queue& producer = card.open();
  Gate gate;
  const auto mark = event("mark");
  std::vector<Queue*> consumers;
  for (std::uint64_t version = 1; version <= kVersions; ++version) {
    if (version % 2 == 0)
      producer.submit(throwing("number " + std::to_string(version)));
    producer.submit(signal(mark));
    if (version % 100 < 2) {
      consumers.push_back(&card.open());
      consumers.back()->submit(gate.operation());
      consumers.back()->submit(wait(mark));
    }
    if (version % 2 == 0)
      CHECK(producer.drain() != nullptr);
  }
  gate.open();
  for (std::size_t i = 0; i < consumers.size(); ++i) {
    if (i % 2 == 0)
      consumers[i]->synchronize();
    else
      CHECK(contains(message_of<Poisoned>([&] { consumers[i]->synchronize(); }),
                     "number " + std::to_string((i + 1) / 2 * 100)));
  }
  // What nobody waited for is forgotten, and never taken for a success.
  CHECK(mark->failure(kVersions) != nullptr && mark->failure(kVersions - 1) == nullptr);
  CHECK(contains(message_of<Poisoned>([&] { card.scheduler.wait(*mark, 2); }), "no longer known"));
}

TEST(R4_11_a_producer_that_ends_first_fails_its_waiters_at_once) {
  Card card;
  Queue& producer = card.open();
  Queue& consumer = card.open();
  const auto never = event("never"), mark = event();
  producer.submit({EventWait{never, never->announce()}});
  producer.submit(signal(mark));
  consumer.submit(wait(mark));
  CHECK(!consumer.idle());
  producer.abandon(std::make_exception_ptr(std::runtime_error("given up")));
  CHECK(contains(message_of<Poisoned>([&] { consumer.synchronize(); }), "given up"));
  CHECK(message_of<std::runtime_error>([&] { producer.synchronize(); }) == "given up");
  // A version announced for a stream that refuses it can never come either.
  Queue& late = card.open();
  Operation refused = signal(mark);
  late.submit(wait(mark));
  producer.shut_down();
  message_of<ShutDown>([&] { producer.submit(std::move(refused)); });
  CHECK(contains(message_of<Poisoned>([&] { late.synchronize(); }), "shut down"));
}

TEST(R4_13_a_cycle_of_waits_is_reported_by_name) {
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& one = card.open();
    Queue& two = card.open();
    Queue& outside = card.open();
    const auto left = event("left"), right = event("right");
    const std::uint64_t left_version = left->announce(), right_version = right->announce();
    one.submit({EventWait{right, right_version}});
    one.submit({EventSignal{left, left_version}});
    two.submit({EventWait{left, left_version}});
    two.submit({EventSignal{right, right_version}});
    const std::string text = message_of<Deadlock>([&] { one.synchronize(); });
    CHECK(contains(text, "left (version 1)") && contains(text, "right (version 1)"));
    CHECK(contains(text, "stream 1 of device 0") && contains(text, "stream 2 of device 0"));
    message_of<Deadlock>([&] { two.synchronize(); });
    bool ran = false;
    one.submit(callback([&] { ran = true; }));
    card.device.synchronize();
    CHECK(ran && outside.idle());
  }
}

TEST(R4_13_a_stream_that_waits_for_itself_is_a_deadlock) {
  Card card;
  Queue& queue = card.open();
  const auto mark = event("mine");
  const std::uint64_t version = mark->announce();
  queue.submit({EventWait{mark, version}});
  CHECK(!queue.idle());
  queue.submit({EventSignal{mark, version}});
  CHECK(contains(message_of<Deadlock>([&] { queue.synchronize(); }), "mine"));
}

TEST(R4_13_a_cycle_through_memory_is_a_deadlock) {
  Card card;
  Block* block = card.device.memory().allocate(128);
  const Span span{block->position, 128};
  Queue& one = card.open();
  Queue& two = card.open();
  const auto mark = event("late");
  const std::uint64_t version = mark->announce();
  one.submit({EventWait{mark, version}});
  one.submit({Fill{span, 1}});
  two.submit({Fill{span, 2}});
  two.submit({EventSignal{mark, version}});
  CHECK(contains(message_of<Deadlock>([&] { one.synchronize(); }), "waits for memory"));
  two.synchronize();
  card.device.memory().free(block);
}

TEST(R4_13_a_wait_without_any_signal_is_a_deadlock_on_the_virtual_clock) {
  Card card(ClockKind::Virtual);
  const auto mark = event("nobody");
  card.device.default_queue().submit({EventWait{mark, mark->announce()}});
  CHECK(contains(message_of<Deadlock>([&] { card.device.synchronize(); }), "nobody"));
  CHECK(contains(message_of<Deadlock>([&] { card.scheduler.wait(*mark, 1); }), "nobody"));
}

TEST(R4_15_synchronize_throws_the_first_error_once) {
  Card card;
  Queue& queue = card.device.default_queue();
  queue.submit(callback([] { throw std::out_of_range("first"); }));
  queue.submit(throwing("second"));
  CHECK(message_of<std::out_of_range>([&] { queue.synchronize(); }) == "first");
  bool ran = false;
  queue.submit(callback([&] { ran = true; }));
  queue.synchronize();
  CHECK(ran);
}

TEST(R4_15_the_first_error_stays_when_the_stream_is_given_up_later) {
  Card card;
  Queue& queue = card.open();
  Gate gate;
  queue.submit(gate.operation());
  bool ran = false;
  queue.submit(callback([&] { ran = true; }));
  queue.abandon(std::make_exception_ptr(std::runtime_error("first")));
  queue.abandon(std::make_exception_ptr(std::runtime_error("last")));
  gate.open();
  CHECK(message_of<std::runtime_error>([&] { queue.synchronize(); }) == "first");
  CHECK(!ran);
}

TEST(R4_16_a_failed_stream_fails_nobody_else_and_the_earliest_error_is_thrown) {
  Card card;
  Queue& good = card.open();
  Queue& late = card.open();
  Queue& early = card.open();
  Gate gate;
  early.submit(throwing("early"));
  late.submit(throwing("late"));
  bool ran = false;
  good.submit(gate.operation());
  good.submit(callback([&] { ran = true; }));
  gate.open();
  CHECK(message_of<std::runtime_error>([&] { card.device.synchronize(); }) == "early");
  CHECK(ran && good.idle());
  card.device.synchronize();
}

TEST(compute_throws_to_its_caller_and_leaves_the_stream_usable) {
  Card card;
  Queue& queue = card.device.default_queue();
  message_of<std::logic_error>([&] { queue.compute([] { throw std::logic_error("shape"); }); });
  bool ran = false;
  queue.compute([&] { queue.compute([&] { ran = true; }); });
  queue.compute([&] { card.open().compute([&] { ran = ran && true; }); });
  queue.synchronize();
  CHECK(ran);
  queue.submit(throwing("earlier"));
  CHECK(message_of<std::runtime_error>([&] { queue.compute([&] { ran = false; }); }) == "earlier");
  CHECK(ran);
}

TEST(compute_waits_for_what_was_submitted_before) {
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& queue = card.device.default_queue();
    std::vector<int> order;
    queue.submit({HostCallback{[&] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                    order.push_back(1);
                  }},
                  {},
                  /*detached=*/true});
    queue.compute([&] { order.push_back(2); });
    CHECK((order == std::vector<int>{1, 2}));
  }
}

TEST(compute_follows_what_other_streams_do_to_the_memory_it_declares) {
  // The other stream's host callback stands for any operation that is not ready at once.
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Block* block = card.device.memory().allocate(4 * kStickBytes);
    const Span first{block->position, kStickBytes};
    const Span second{block->position + kStickBytes, kStickBytes};
    Queue& other = card.open();
    std::atomic<bool> written{false};
    Operation write = callback([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      written = true;
    });
    write.detached = true;
    write.footprint.writes.push_back(first);
    Gate gate;
    other.submit(gate.operation());
    other.submit(std::move(write));
    Queue& queue = card.device.default_queue();
    bool seen = true;
    if (clock == ClockKind::Wall) {
      queue.compute({{second}, {}}, "elsewhere", [&] { seen = written; });
      CHECK(!seen);
    }
    gate.open();
    queue.compute({{first}, {}}, "reads", [&] { seen = written; });
    CHECK(seen);
    card.device.synchronize();
    CHECK(card.scheduler.tracked().first == 0);
    card.device.memory().free(block);
  }
}

TEST(what_computes_on_its_callers_thread_is_pending) {
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& queue = card.open();
    std::size_t alone = 0, followed = 0, outstanding = 0;
    queue.compute([&] {
      alone = queue.pending();
      queue.submit(callback([] {}));
      followed = queue.pending();
      outstanding = card.scheduler.outstanding();
    });
    queue.synchronize();
    CHECK(alone == 1 && followed == 2 && outstanding == 2 && queue.pending() == 0);
  }
}

TEST(closing_a_stream_lets_another_thread_finish_what_it_does_for_it) {
  // What the operation held ends only when the stream refuses work, which takes the scheduler's lock.
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& queue = card.open();
    std::thread closing;
    queue.submit(throwing("skips what follows"));
    while (queue.error() == nullptr)
      queue.idle();
    queue.submit({HostCallback{[] {}}, std::shared_ptr<int>(new int(1), [&](int* number) {
                    delete number;
                    closing = std::thread([&] { queue.shut_down(); });
                    try {
                      for (;;)
                        queue.submit(callback([] {}));
                    } catch (const ShutDown&) {
                    }
                  })});
    CHECK(queue.drain() != nullptr);
    closing.join();
    CHECK(queue.idle());
  }
}

TEST(R4_20_threads_lose_no_wakeup) {
  Card card;
  std::vector<Queue*> queues;
  for (int i = 0; i < 3; ++i)
    queues.push_back(&card.open());
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 500; ++i) {
        Queue& queue = *queues[random() % queues.size()];
        switch (random() % 4) {
        case 0:
          queue.compute([&] { ++done; });
          break;
        case 1: {
          const auto mark = event();
          queue.submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/true});
          queue.submit(signal(mark));
          queues[random() % queues.size()]->submit(wait(mark));
          if (i % 10 == 0)
            card.scheduler.wait(*mark, 1);
          break;
        }
        default:
          queue.submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/i % 2 == 0});
        }
        if (i % 50 == 0)
          queue.synchronize();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  card.device.synchronize();
  CHECK(done == 2'000);
}

TEST(R4_18_host_tasks_of_several_streams_run_at_once) {
  // Each ends only when all have begun.
  Card card;
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0;
  for (int i = 0; i < 8; ++i)
    card.open().submit({HostCallback{[&] {
                          std::unique_lock lock(mutex);
                          ++begun;
                          changed.notify_all();
                          changed.wait(lock, [&] { return begun == 8; });
                        }},
                        {},
                        /*detached=*/true});
  card.device.synchronize();
  CHECK(begun == 8);
}

TEST(R3_8_a_staging_buffer_is_not_reused_before_its_transfer) {
  Card card;
  StagingPool pool(card.scheduler, 1, 128);
  Block* block = card.device.memory().allocate(1024);
  Queue& queue = card.open();
  std::thread preparation([&] {
    for (std::uint64_t i = 0; i < 8; ++i) {
      const auto buffer = pool.acquire();
      std::memset(buffer.get(), static_cast<int>(i + 1), 128);
      queue.submit({CopyToDevice{buffer.get(), {block->position + i * 128, 128}}, buffer, /*detached=*/true});
    }
  });
  preparation.join();
  queue.synchronize();
  std::vector<char> seen(1024);
  queue.submit({CopyToHost{{block->position, 1024}, seen.data()}});
  queue.synchronize();
  for (std::size_t i = 0; i < 1024; ++i)
    CHECK(seen[i] == static_cast<char>(i / 128 + 1));
  card.device.memory().free(block);
}

TEST(R3_8_a_staging_pool_holds_back_who_runs_ahead) {
  Card card(ClockKind::Virtual);
  StagingPool pool(card.scheduler, 2, 128);
  Block* block = card.device.memory().allocate(128);
  Queue& queue = card.open();
  for (int launch = 0; launch < 6; ++launch) {
    const auto buffer = pool.acquire();
    // This one and the one before are in use; whose buffer this was has completed.
    CHECK(queue.pending() <= 1);
    std::memset(buffer.get(), launch, 128);
    Operation transfer{CopyToDevice{buffer.get(), {block->position, 128}}, buffer};
    transfer.cost = 1'000'000;
    queue.submit(std::move(transfer));
    CHECK(queue.pending() == (launch == 0 ? 1u : 2u));
  }
  queue.synchronize();
  card.device.memory().free(block);
}

TEST(a_hundred_thousand_queued_operations_leave_nothing_behind) {
  Card card;
  Gate gate;
  Queue& queue = card.open();
  Block* block = card.device.memory().allocate(4096);
  queue.submit(gate.operation());
  for (std::uint64_t i = 0; i < 100'000; ++i)
    queue.submit({Fill{{block->position + i % 32 * 128, 128}, 1}});
  CHECK(card.scheduler.outstanding() == 100'001);
  gate.open();
  queue.synchronize();
  CHECK(card.scheduler.outstanding() == 0);
  CHECK((card.scheduler.tracked() == std::pair<std::size_t, std::size_t>(0, 0)));
  card.device.memory().free(block);
}

TEST(after_shut_down_work_is_refused_and_old_work_is_done) {
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual}) {
    Card card(clock);
    Queue& queue = card.device.default_queue();
    std::atomic<int> done{0};
    for (int i = 0; i < 10; ++i)
      queue.submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/true});
    Queue& stuck = card.open();
    const auto never = event("never");
    stuck.submit({EventWait{never, never->announce()}});
    card.scheduler.shut_down();
    CHECK(done == 10);
    message_of<ShutDown>([&] { queue.submit(callback([] {})); });
    message_of<ShutDown>([&] { queue.compute([] {}); });
    CHECK(contains(message_of<ShutDown>([&] { stuck.synchronize(); }), "never"));
    queue.synchronize();
    card.scheduler.shut_down();
  }
}
