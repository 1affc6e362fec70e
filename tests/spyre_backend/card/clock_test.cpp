// The virtual clock: what overlaps, what follows, and that it repeats exactly.
#include "harness.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace spyre::card;
using namespace spyre::card::test;

namespace {

constexpr Ticks kMicro = 1'000;

Operation costs(Operation operation, Ticks cost, std::string label = {}) {
  operation.cost = cost;
  operation.label = std::move(label);
  return operation;
}

const Interval& find(const std::vector<Interval>& timeline, const std::string& label) {
  const auto interval = std::find_if(timeline.begin(), timeline.end(),
                                     [&](const Interval& candidate) { return candidate.label == label; });
  CHECK(interval != timeline.end());
  return *interval;
}

bool overlap(const Interval& a, const Interval& b) {
  return a.start < b.end && b.start < a.end;
}

} // namespace

TEST(S_1_S_2_timelines_show_exclusive_compute_and_overlapping_transfers) {
  Card card(ClockKind::Virtual);
  Block* block = card.device.memory().allocate(8192);
  std::vector<char> bytes(4096);
  Queue& one = card.open();
  Queue& two = card.open();
  card.scheduler.start_recording();
  one.submit(costs({Compute{[](auto) {}}}, 100 * kMicro, "a"));
  two.submit(costs({Compute{[](auto) {}}}, 100 * kMicro, "b"));
  card.device.default_queue().submit(
      costs({CopyToDevice{bytes.data(), {block->position, 4096}}}, 50 * kMicro, "in"));
  card.open().submit(costs({CopyToHost{{block->position + 4096, 4096}, bytes.data()}}, 50 * kMicro, "out"));
  card.device.synchronize();
  const auto timeline = card.scheduler.stop_recording();
  CHECK(timeline.size() == 4);
  CHECK(!overlap(find(timeline, "a"), find(timeline, "b")));
  CHECK(find(timeline, "b").start == find(timeline, "a").end);
  CHECK(overlap(find(timeline, "a"), find(timeline, "in")));
  CHECK(overlap(find(timeline, "in"), find(timeline, "out")));
  card.device.memory().free(block);
}

TEST(the_cost_model_says_how_long_operations_take) {
  Card card(ClockKind::Virtual);
  const CostModel& model = card.scheduler.costs();
  Block* block = card.device.memory().allocate(kMiB);
  std::vector<char> bytes(kMiB);
  Queue& queue = card.open();
  card.scheduler.start_recording();
  queue.submit({CopyToDevice{bytes.data(), {block->position, kMiB}}});
  queue.submit({Compute{[](auto) {}}});
  queue.submit(callback([] {}));
  queue.synchronize();
  const auto timeline = card.scheduler.stop_recording();
  CHECK(timeline[0].end - timeline[0].start ==
        model.transfer + CostModel::at_rate(kMiB, model.to_device_rate));
  CHECK(timeline[1].end - timeline[1].start == model.compute);
  CHECK(timeline[2].end - timeline[2].start == model.host_callback);
  CHECK(timeline[0].start == model.launch && timeline[2].end == card.scheduler.now());
  card.device.memory().free(block);
}

TEST(R4_21_timelines_repeat_exactly) {
  const auto play = [] {
    Card card(ClockKind::Virtual);
    Block* block = card.device.memory().allocate(64 * 1024);
    std::vector<char> bytes(64 * 1024);
    std::vector<Queue*> queues;
    for (int i = 0; i < 5; ++i)
      queues.push_back(&card.open(i % 2));
    std::mt19937 random(5);
    std::vector<std::shared_ptr<Event>> events{event()};
    queues[0]->submit(signal(events[0]));
    card.scheduler.start_recording();
    for (int i = 0; i < 2'000; ++i) {
      Queue& queue = *queues[random() % 5];
      const Span span{block->position + random() % 256 * 128, 1 + random() % 4096};
      switch (random() % 6) {
      case 0:
        queue.submit({CopyToDevice{bytes.data(), span}});
        break;
      case 1:
        queue.submit({CopyToHost{span, bytes.data()}});
        break;
      case 2:
        queue.submit(costs({Compute{[](auto) {}}, {}, false, {{span}, {}}}, random() % 50'000));
        break;
      case 3:
        events.push_back(event());
        queue.submit(signal(events.back()));
        break;
      case 4:
        queue.submit(wait(events[random() % events.size()]));
        break;
      default:
        queue.submit(callback([] {}));
      }
      if (random() % 100 == 0)
        queue.synchronize();
    }
    card.device.synchronize();
    auto timeline = card.scheduler.stop_recording();
    card.device.memory().free(block);
    return timeline;
  };
  const auto first = play();
  CHECK(first.size() > 1'000 && first == play());
}

TEST(R4_2_preparation_overlaps_compute_and_R4_3_R4_4_transfers_follow_their_hazards) {
  for (const bool distinct : {true, false}) {
    Card card(ClockKind::Virtual);
    Block* corrections = card.device.memory().allocate(1024);
    std::vector<char> bytes(256);
    Queue& preparation = card.open();
    Queue& stream = card.open();
    card.scheduler.start_recording();
    for (int launch = 0; launch < 4; ++launch) {
      const std::string number = std::to_string(launch);
      const Span correction{corrections->position + (distinct && launch % 2 != 0 ? 512u : 0u), 256};
      const auto ready = event();
      preparation.submit(costs(callback([] {}), 20 * kMicro, "host " + number));
      preparation.submit(costs({CopyToDevice{bytes.data(), correction}}, 10 * kMicro, "h2d " + number));
      preparation.submit(signal(ready));
      stream.submit(wait(ready));
      stream.submit(
          costs({Compute{[](auto) {}}, {}, false, {{correction}, {}}}, 100 * kMicro, "run " + number));
    }
    card.device.synchronize();
    const auto timeline = card.scheduler.stop_recording();
    for (int launch = 1; launch < 4; ++launch) {
      const std::string number = std::to_string(launch);
      const Interval& before = find(timeline, "run " + std::to_string(launch - 1));
      const Interval& transfer = find(timeline, "h2d " + number);
      CHECK(find(timeline, "run " + number).start >= transfer.end);
      if (distinct)
        CHECK(overlap(before, transfer));
      else
        CHECK(transfer.start >= before.end);
    }
    CHECK(overlap(find(timeline, "run 0"), find(timeline, "host 1")));
    card.device.memory().free(corrections);
  }
}

TEST(R4_18_k_host_tasks_on_k_streams_take_the_time_of_one) {
  Card card(ClockKind::Virtual);
  const Ticks start = card.scheduler.now();
  for (int i = 0; i < 8; ++i)
    card.open().submit(costs(callback([] {}), 1'000 * kMicro));
  card.device.synchronize();
  CHECK(card.scheduler.now() - start < 1'100 * kMicro);
}

TEST(R4_20_priorities_are_honoured_and_nobody_starves) {
  Card card(ClockKind::Virtual);
  Queue& low = card.open(1);
  std::vector<Queue*> high;
  for (int i = 0; i < 3; ++i)
    high.push_back(&card.open(-1));
  card.scheduler.start_recording();
  low.submit(costs({Compute{[](auto) {}}}, 10 * kMicro, "first"));
  for (int i = 0; i < 3; ++i)
    low.submit(costs({Compute{[](auto) {}}}, 10 * kMicro, "low " + std::to_string(i)));
  for (int i = 0; i < 40; ++i)
    for (Queue* queue : high)
      queue->submit(costs({Compute{[](auto) {}}}, 10 * kMicro, "high " + std::to_string(i)));
  card.device.synchronize();
  const auto timeline = card.scheduler.stop_recording();
  CHECK(find(timeline, "low 0").start > find(timeline, "high 3").start);
  CHECK(find(timeline, "low 1").start < find(timeline, "high 39").start);
}

TEST(S_4_the_fetch_unit_runs_ahead_unless_there_is_a_barrier) {
  // The program is patched by a transfer that is queued right before the Compute.
  for (const ClockKind clock : {ClockKind::Wall, ClockKind::Virtual})
    for (const bool barrier : {true, false}) {
      Card card(clock);
      Block* program = card.device.memory().allocate(128, Use::Program);
      const Span span{program->position, 128};
      Queue& queue = card.open();
      Gate gate;
      std::vector<char> stale(128, 1), patched(128, 2);
      queue.submit({CopyToDevice{stale.data(), span}});
      queue.synchronize();
      if (clock == ClockKind::Wall)
        queue.submit(gate.operation());
      int seen = 0;
      queue.submit({CopyToDevice{patched.data(), span}});
      queue.submit({Compute{[&](std::span<const std::byte> bytes) { seen = static_cast<int>(bytes[0]); },
                            span, barrier}});
      gate.open();
      queue.synchronize();
      CHECK(seen == (barrier ? 2 : 1));
      card.device.memory().free(program);
    }
}

TEST(S_4_reading_ahead_hides_the_time_of_the_fetch) {
  const auto duration = [](bool barrier) {
    Card card(ClockKind::Virtual);
    Block* program = card.device.memory().allocate(8 * kMiB, Use::Program);
    Queue& queue = card.open();
    for (int i = 0; i < 10; ++i)
      queue.submit(
          costs({Compute{[](auto) {}, {program->position, 8 * kMiB}, barrier}}, 100 * kMicro, "run"));
    queue.synchronize();
    card.device.memory().free(program);
    return card.scheduler.now();
  };
  CHECK(duration(false) < duration(true) - 300 * kMicro);
}

TEST(S_4_a_program_is_never_read_while_an_operation_writes_it) {
  // Every write sets all bytes; one that the fetch unit sees half of leaves two values in the program.
  constexpr std::uint64_t kBytes = 2 * kMiB;
  Card card;
  Block* program = card.device.memory().allocate(kBytes, Use::Program);
  Block* source = card.device.memory().allocate(kBytes);
  const Span span{program->position, kBytes}, ones{source->position, kBytes};
  Queue& writer = card.open();
  Queue& reader = card.open();
  std::vector<char> threes(kBytes, 3);
  writer.submit({Fill{ones, 1}});
  writer.submit({Fill{span, 1}});
  writer.synchronize();
  std::atomic<bool> stop{false};
  std::thread writing([&] {
    while (!stop) {
      writer.submit({CopyPeer{ones, span}});
      writer.submit({Fill{span, 2}});
      writer.submit({CopyToDevice{threes.data(), span}});
      writer.synchronize();
    }
  });
  std::atomic<int> torn{0};
  for (int i = 0; i < 10 && torn == 0; ++i) {
    Gate gate;
    reader.submit(gate.operation());
    reader.submit({Compute{[&](std::span<const std::byte> bytes) {
                             if (std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) != 0)
                               ++torn;
                           },
                           span, /*fetch_barrier=*/false}});
    gate.open();
    reader.synchronize();
  }
  stop = true;
  writing.join();
  card.device.synchronize();
  CHECK(torn == 0);
  card.device.memory().free(source);
  card.device.memory().free(program);
}

TEST(reading_a_large_program_holds_up_nobody) {
  // Somebody else's operations run while the fetch unit reads.
  Card card;
  constexpr std::uint64_t kBytes = 32 * kMiB;
  Block* program = card.device.memory().allocate(kBytes, Use::Program);
  Queue& queue = card.open();
  Queue& other = card.open();
  std::atomic<bool> stop{false};
  card.scheduler.start_recording();
  std::thread busy([&] {
    while (!stop)
      other.submit(callback([] {}));
  });
  bool seen = false;
  for (int attempt = 0; attempt < 200 && !seen; ++attempt) {
    queue.submit({Compute{[](auto) {}, {program->position, kBytes}}});
    queue.synchronize();
    const auto timeline = card.scheduler.take_recording();
    const auto fetch = std::find_if(timeline.begin(), timeline.end(), [](const Interval& interval) {
      return interval.pipeline == PipelineKind::Fetch;
    });
    CHECK(fetch != timeline.end());
    seen = std::any_of(timeline.begin(), timeline.end(), [&](const Interval& interval) {
      return interval.queue == other.id() && interval.start > fetch->start && interval.end < fetch->end;
    });
  }
  stop = true;
  busy.join();
  card.device.synchronize();
  CHECK(seen);
  card.device.memory().free(program);
}

TEST(a_program_that_is_gone_is_a_fault) {
  Card card;
  Block* program = card.device.memory().allocate(128, Use::Program);
  const Span span{program->position, 128};
  card.device.memory().free(program);
  Queue& queue = card.open();
  queue.submit({Compute{[](auto) {}, span}});
  message_of<MemoryFault>([&] { queue.synchronize(); });
}

TEST(events_carry_the_time_of_their_signal) {
  Card card(ClockKind::Virtual);
  Queue& queue = card.open();
  const auto start = event(), end = event();
  queue.submit(signal(start));
  queue.submit(costs({Compute{[](auto) {}}}, 250 * kMicro));
  queue.submit(signal(end));
  message_of<InvalidArgument>([&] { end->time(); });
  card.scheduler.wait(*end, 1);
  CHECK(end->time() - start->time() >= 250 * kMicro && end->time() - start->time() < 260 * kMicro);
}

TEST(asking_lets_virtual_time_pass) {
  Card card(ClockKind::Virtual);
  Queue& queue = card.open();
  const auto mark = event();
  queue.submit(costs({Compute{[](auto) {}}}, 100 * kMicro));
  queue.submit(signal(mark));
  int questions = 0;
  while (!card.scheduler.reached(*mark, 1))
    ++questions;
  CHECK(questions > 10 && questions < 1'000);
}
