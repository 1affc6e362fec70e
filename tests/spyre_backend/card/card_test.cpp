// The card on its own: no torch. `card_test NAME` runs one test and exits 0 or prints what is wrong and
// exits 1.
#include "card/device.h"
#include "card/error.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace spyre::card;

namespace {

std::map<std::string, std::function<void()>>& tests() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

struct Register {
  Register(const std::string& name, std::function<void()> body) { tests()[name] = std::move(body); }
};

#define TEST(name)                                                                                           \
  void name();                                                                                               \
  const Register register_##name(#name, name);                                                               \
  void name()

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      std::ostringstream text;                                                                               \
      text << __FILE__ << ":" << __LINE__ << ": " #condition " does not hold";                               \
      throw std::runtime_error(text.str());                                                                  \
    }                                                                                                        \
  } while (false)

template <class Error> std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was thrown, or something else");
}

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kCapacity = 64 * kMiB;

struct Card {
  explicit Card(std::uint64_t capacity = kCapacity, std::uint32_t handles = 8)
      : arena(capacity), device(arena, 0, capacity, handles) {}
  Arena arena;
  Device device;
};

// A gate that holds a queue until the test opens it.
class Gate {
public:
  Operation operation() {
    return {HostCallback{[this] {
              std::unique_lock lock(mutex_);
              open_cv_.wait(lock, [this] { return open_; });
            }},
            {},
            /*detached=*/true};
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    open_cv_.notify_all();
  }

private:
  std::mutex mutex_;
  std::condition_variable open_cv_;
  bool open_ = false;
};

// Random allocations and frees; after each, what is live is aligned, inside one region, and disjoint.
std::vector<std::uint64_t> play(RegionAllocator& memory, int steps, std::uint32_t handles) {
  std::mt19937 random(7);
  std::vector<Block*> live;
  std::vector<std::uint64_t> positions;
  for (int step = 0; step < steps; ++step) {
    if (!live.empty() && random() % 100 < 47) {
      const std::size_t index = random() % live.size();
      memory.free(live[index]);
      live[index] = live.back();
      live.pop_back();
    } else {
      const std::uint64_t bytes = 1 + (random() % 4 == 0 ? random() % (256 * 1024) : random() % 4096);
      Block* block = memory.allocate(bytes);
      CHECK(block->length >= bytes && block->length % kStickBytes == 0 && block->offset % kStickBytes == 0);
      live.push_back(block);
      positions.push_back(block->position);
    }
    CHECK(memory.stats().regions.current <= static_cast<std::int64_t>(handles));
  }
  std::sort(live.begin(), live.end(),
            [](const Block* a, const Block* b) { return a->position < b->position; });
  for (std::size_t i = 1; i < live.size(); ++i)
    CHECK(live[i - 1]->position + live[i - 1]->length <= live[i]->position);
  std::int64_t bytes = 0;
  for (const Block* block : live)
    bytes += static_cast<std::int64_t>(block->length);
  CHECK(memory.stats().allocated_bytes.current == bytes);
  CHECK(memory.stats().allocations.current == static_cast<std::int64_t>(live.size()));
  for (Block* block : live)
    memory.free(block);
  CHECK(memory.stats().allocated_bytes.current == 0);
  return positions;
}

} // namespace

TEST(R2_1_allocations_are_aligned_and_disjoint) {
  Card card;
  play(card.device.memory(), 10'000, 8);
}

TEST(R2_2_offsets_repeat_exactly) {
  Card one, two;
  CHECK(play(one.device.memory(), 5'000, 8) == play(two.device.memory(), 5'000, 8));
}

TEST(R2_3_many_tensors_never_exceed_the_handles) {
  Card card(kCapacity, 4);
  std::vector<Block*> live;
  for (int i = 0; i < 10'000; ++i)
    live.push_back(card.device.memory().allocate(1000));
  CHECK(card.device.memory().stats().regions.current <= 4);
  message_of<OutOfMemory>([&] { card.device.memory().allocate(kCapacity); });
  for (Block* block : live)
    card.device.memory().free(block);
}

TEST(R2_5_a_second_free_is_a_fault) {
  Card card;
  Block* block = card.device.memory().allocate(100);
  card.device.memory().free(block);
  message_of<MemoryFault>([&] { card.device.memory().free(block); });
}

TEST(R2_6_neighbours_merge) {
  Card card(kCapacity, 1);
  RegionAllocator& memory = card.device.memory();
  std::vector<Block*> live;
  for (int i = 0; i < 64; ++i)
    live.push_back(memory.allocate(kMiB));
  message_of<OutOfMemory>([&] { memory.allocate(kMiB); });
  for (int i = 0; i < 64; i += 2)
    memory.free(live[static_cast<std::size_t>(i)]);
  message_of<OutOfMemory>([&] { memory.allocate(2 * kMiB); });
  for (int i = 1; i < 64; i += 2)
    memory.free(live[static_cast<std::size_t>(i)]);
  memory.free(memory.allocate(kCapacity));
}

TEST(R2_7_zero_bytes_are_no_block) {
  Card card;
  CHECK(card.device.memory().allocate(0) == nullptr);
  CHECK(card.device.memory().stats().allocations.total == 0);
}

TEST(R2_9_statistics_are_exact_under_threads) {
  Card card;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2'000; ++i)
        card.device.memory().free(card.device.memory().allocate(300));
    });
  for (std::thread& thread : threads)
    thread.join();
  const MemoryStats stats = card.device.memory().stats();
  CHECK(stats.allocations.total == 8'000 && stats.allocations.freed == 8'000 &&
        stats.allocations.current == 0);
  CHECK(stats.allocated_bytes.total == 8'000 * 384 && stats.requested_bytes.total == 8'000 * 300);
  CHECK(stats.allocations.peak >= 1 && stats.allocations.peak <= 4);
}

TEST(R2_10_free_regions_return_with_their_handles) {
  Card card;
  RegionAllocator& memory = card.device.memory();
  Block* small = memory.allocate(100);
  Block* large = memory.allocate(20 * kMiB);
  CHECK(memory.stats().regions.current == 2);
  memory.free(large);
  memory.release_free_regions();
  CHECK(memory.stats().regions.current == 1);
  memory.free(small);
  memory.release_free_regions();
  CHECK(memory.stats().regions.current == 0 && memory.stats().reserved_bytes.current == 0);
  memory.free(memory.allocate(kCapacity));
}

TEST(R2_14_out_of_memory_names_the_figures_and_changes_nothing) {
  Card card;
  RegionAllocator& memory = card.device.memory();
  Block* block = memory.allocate(kMiB);
  const MemoryStats before = memory.stats();
  const std::string text = message_of<OutOfMemory>([&] { memory.allocate(kCapacity); });
  CHECK(text.find(std::to_string(kCapacity)) != std::string::npos);
  CHECK(text.find(std::to_string(kCapacity - kMiB)) != std::string::npos);
  CHECK(text.find("1 of 8 region handles") != std::string::npos);
  const MemoryStats after = memory.stats();
  CHECK(after.allocated_bytes.current == before.allocated_bytes.current);
  CHECK(after.regions.current == before.regions.current && after.out_of_memory == 1);
  memory.free(block);
  // Cached free regions are given up before a request is refused.
  Block* first = memory.allocate(8 * kMiB);
  memory.free(first);
  memory.free(memory.allocate(kCapacity));
  CHECK(memory.stats().retries == 1);
}

TEST(S_3_accesses_are_checked) {
  Card card;
  Block* block = card.device.memory().allocate(256);
  const Span inside{block->position, 256};
  std::vector<char> bytes(1024, 'x');
  Queue& queue = card.device.default_queue();
  queue.submit({CopyToDevice{bytes.data(), inside}});
  queue.synchronize();
  queue.submit({CopyToDevice{bytes.data(), {block->position, 257}}});
  CHECK(message_of<MemoryFault>([&] { queue.synchronize(); }).find("past the end") != std::string::npos);
  card.device.memory().free(block);
  queue.submit({CopyToHost{inside, bytes.data()}});
  CHECK(message_of<MemoryFault>([&] { queue.synchronize(); }).find("no live allocation") !=
        std::string::npos);
}

TEST(R2_8_tokens_are_inaccessible_and_map_to_backing) {
  Card card;
  Block* block = card.device.memory().allocate(256);
  std::byte* token = card.arena.token(block->position);
  CHECK(card.arena.holds_token(token) && !card.arena.holds_token(card.arena.backing(block->position)));
  CHECK(token + card.arena.delta() == card.arena.backing(block->position));
  CHECK(card.device.memory().find(block->position + 200)->position == block->position);
  CHECK(!card.device.memory().find(block->position + 256));
  card.device.memory().free(block);
}

TEST(R1_2_completion_order_is_submission_order) {
  Card card;
  Queue& queue = card.device.default_queue();
  std::mt19937 random(3);
  std::vector<int> order;
  for (int i = 0; i < 2'000; ++i) {
    const int pause = static_cast<int>(random() % 20);
    Operation operation{HostCallback{[&order, i, pause] {
      if (pause == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      order.push_back(i);
    }}};
    operation.detached = random() % 3 == 0;
    queue.submit(std::move(operation));
  }
  queue.synchronize();
  CHECK(order.size() == 2'000 && std::is_sorted(order.begin(), order.end()));
}

TEST(a_small_operation_runs_on_the_submitting_thread) {
  Card card;
  std::thread::id runner;
  card.device.default_queue().submit({HostCallback{[&] { runner = std::this_thread::get_id(); }}});
  CHECK(runner == std::this_thread::get_id());
}

TEST(S_1_compute_never_overlaps) {
  Card card;
  std::atomic<int> running{0};
  std::atomic<bool> overlapped{false};
  const auto kernel = [&] {
    if (running.fetch_add(1) != 0)
      overlapped = true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    running.fetch_sub(1);
  };
  std::vector<Queue*> queues;
  for (int i = 0; i < 4; ++i)
    queues.push_back(&card.device.queue(card.device.open_queue()));
  for (int i = 0; i < 50; ++i)
    for (Queue* queue : queues)
      queue->submit({Compute{kernel}, {}, /*detached=*/true});
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
  Queue& compute = card.device.queue(card.device.open_queue());
  auto held = gate.operation();
  compute.submit({Compute{std::get<HostCallback>(held.body).call}, {}, /*detached=*/true});
  char bytes[128] = {};
  card.device.default_queue().submit({CopyToDevice{bytes, {block->position, 128}}, {}, /*detached=*/true});
  card.device.default_queue().synchronize();
  CHECK(!compute.idle());
  gate.open();
  compute.synchronize();
  card.device.memory().free(block);
}

TEST(R4_9_a_signal_fires_after_everything_before_it) {
  Card card;
  Gate gate;
  Queue& queue = card.device.default_queue();
  auto event = std::make_shared<Event>();
  queue.submit(gate.operation());
  queue.submit({EventSignal{event, event->announce()}});
  CHECK(!event->reached(event->version()));
  gate.open();
  event->wait(1);
  CHECK(event->reached(1));
  queue.synchronize();
}

TEST(R4_10_a_wait_means_the_version_at_call_time) {
  Card card;
  Gate first, second;
  Queue& producer = card.device.queue(card.device.open_queue());
  Queue& consumer = card.device.queue(card.device.open_queue());
  auto event = std::make_shared<Event>();
  producer.submit(first.operation());
  producer.submit({EventSignal{event, event->announce()}});
  consumer.submit({EventWait{event, event->version()}});
  producer.submit(second.operation());
  producer.submit({EventSignal{event, event->announce()}});
  first.open();
  consumer.synchronize();
  CHECK(!producer.idle() && !event->reached(2));
  second.open();
  card.device.synchronize();
}

TEST(a_wait_owns_its_event) {
  Card card;
  Gate gate;
  Queue& producer = card.device.queue(card.device.open_queue());
  Queue& consumer = card.device.queue(card.device.open_queue());
  producer.submit(gate.operation());
  {
    auto event = std::make_shared<Event>();
    producer.submit({EventSignal{event, event->announce()}});
    consumer.submit({EventWait{event, event->version()}});
  }
  CHECK(!consumer.idle());
  gate.open();
  consumer.synchronize();
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

TEST(R4_11_waiting_for_failed_work_fails) {
  Card card;
  Queue& producer = card.device.queue(card.device.open_queue());
  Queue& consumer = card.device.queue(card.device.open_queue());
  auto event = std::make_shared<Event>();
  producer.submit({HostCallback{[] { throw std::runtime_error("the first cause"); }}});
  producer.submit({EventSignal{event, event->announce()}});
  consumer.submit({EventWait{event, event->version()}});
  bool ran = false;
  consumer.submit({HostCallback{[&] { ran = true; }}});
  CHECK(message_of<Poisoned>([&] { consumer.synchronize(); }).find("the first cause") != std::string::npos);
  CHECK(!ran);
}

TEST(R4_15_synchronize_throws_the_first_error_once) {
  Card card;
  Queue& queue = card.device.default_queue();
  queue.submit({HostCallback{[] { throw std::out_of_range("first"); }}});
  queue.submit({HostCallback{[] { throw std::runtime_error("second"); }}});
  CHECK(message_of<std::out_of_range>([&] { queue.synchronize(); }) == "first");
  bool ran = false;
  queue.submit({HostCallback{[&] { ran = true; }}});
  queue.synchronize();
  CHECK(ran);
}

TEST(R4_16_a_failed_stream_fails_nobody_else) {
  Card card;
  Queue& good = card.device.queue(card.device.open_queue());
  Queue& bad = card.device.queue(card.device.open_queue());
  Gate gate;
  bad.submit({HostCallback{[] { throw std::runtime_error("bad"); }}});
  bool ran = false;
  good.submit(gate.operation());
  good.submit({HostCallback{[&] { ran = true; }}});
  gate.open();
  CHECK(message_of<std::runtime_error>([&] { card.device.synchronize(); }) == "bad");
  CHECK(ran && good.idle());
}

TEST(compute_throws_to_its_caller_and_leaves_the_stream_usable) {
  Card card;
  Queue& queue = card.device.default_queue();
  message_of<std::logic_error>([&] { queue.compute([] { throw std::logic_error("shape"); }); });
  bool ran = false;
  queue.compute([&] { queue.compute([&] { ran = true; }); });
  queue.synchronize();
  CHECK(ran);
}

TEST(compute_waits_for_what_was_submitted_before) {
  Card card;
  Queue& queue = card.device.default_queue();
  std::vector<int> order;
  queue.submit({HostCallback{[&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                  order.push_back(1);
                }},
                {},
                /*detached=*/true});
  queue.compute([&] { order.push_back(2); });
  CHECK((order == std::vector<int>{1, 2}));
}

TEST(R4_20_threads_on_one_queue_lose_no_wakeup) {
  Card card;
  Queue& queue = card.device.default_queue();
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        if ((i + t) % 3 == 0)
          queue.compute([&] { ++done; });
        else
          queue.submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/i % 2 == 0});
        if (i % 50 == 0)
          queue.synchronize();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  queue.synchronize();
  CHECK(done == 2'000);
}

TEST(after_shut_down_work_is_refused_and_old_work_is_done) {
  Card card;
  Queue& queue = card.device.default_queue();
  std::atomic<int> done{0};
  for (int i = 0; i < 10; ++i)
    queue.submit({HostCallback{[&] { ++done; }}, {}, /*detached=*/true});
  card.device.shut_down();
  CHECK(done == 10);
  message_of<ShutDown>([&] { queue.submit({HostCallback{[] {}}}); });
  message_of<ShutDown>([&] { queue.compute([] {}); });
  queue.synchronize();
}

int main(int count, char** arguments) {
  if (count == 2 && std::string(arguments[1]) == "--list") {
    for (const auto& [name, body] : tests())
      std::cout << name << "\n";
    return 0;
  }
  const auto test = tests().find(count == 2 ? arguments[1] : "");
  if (test == tests().end()) {
    std::cerr << "usage: card_test --list | NAME\n";
    return 2;
  }
  try {
    test->second();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
