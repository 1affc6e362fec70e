// Measurements of the card without torch. `card_bench queued` prints figures of many queued operations;
// `card_bench streams N` plays four launches on one stream, or with their preparation on a second one, on the
// virtual clock and prints the intervals.
#include "card/device.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using namespace spyre::card;

namespace {

constexpr std::uint64_t kCapacity = 64 << 20;
constexpr int kOperations = 100'000;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Resident memory of this process, in bytes (proc(5), statm).
std::uint64_t resident() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0, pages = 0;
  file >> total >> pages;
  return pages * 4096;
}

// Submits operations behind a closed gate, opens it, and waits.
void queued() {
  const Arena arena(RegionAllocator::footprint(kCapacity));
  Scheduler scheduler({});
  Device device(scheduler, arena, 0, kCapacity, {});
  Queue& queue = device.default_queue();
  Block* block = device.memory().allocate(4096);
  const auto round = [&] {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    queue.submit({HostCallback{[&] {
                    std::unique_lock lock(mutex);
                    changed.wait(lock, [&] { return open; });
                  }},
                  {},
                  /*detached=*/true});
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < kOperations; ++i)
      queue.submit({Fill{{block->position + i % 32 * kStickBytes, kStickBytes}, 1}});
    const double submitted = seconds_since(start);
    {
      const std::lock_guard lock(mutex);
      open = true;
    }
    changed.notify_all();
    const auto opened = std::chrono::steady_clock::now();
    queue.synchronize();
    return std::pair(submitted, seconds_since(opened));
  };
  round();
  const std::uint64_t before = resident();
  std::pair<double, double> last;
  for (int i = 0; i < 10; ++i)
    last = round();
  const std::uint64_t after = resident();

  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kOperations; ++i)
    queue.submit({Fill{{block->position, kStickBytes}, 1}});
  const double here = seconds_since(start);
  device.memory().free(block);

  std::vector<Block*> live;
  const auto allocating = std::chrono::steady_clock::now();
  for (int i = 0; i < 10'000; ++i)
    live.push_back(device.memory().allocate(1024));
  const double allocated = seconds_since(allocating);
  const auto freeing = std::chrono::steady_clock::now();
  for (Block* one : live)
    device.memory().free(one);
  const double freed = seconds_since(freeing);

  std::cout << "submit ns, queued: " << last.first / kOperations * 1e9 << "\n"
            << "complete ns, queued: " << last.second / kOperations * 1e9 << "\n"
            << "submit and complete ns, on the caller's thread: " << here / kOperations * 1e9 << "\n"
            << "memory growth over 1,000,000 queued operations, bytes: "
            << static_cast<std::int64_t>(after - before) << "\n"
            << "allocate us, 10,000 live: " << allocated / 10'000 * 1e6 << "\n"
            << "free us, 10,000 live: " << freed / 10'000 * 1e6 << "\n";
}

// A launch: the host prepares, the correction travels, the program runs.
void streams(bool two) {
  const Arena arena(RegionAllocator::footprint(kCapacity));
  Scheduler scheduler({ClockKind::Virtual, {}, 16});
  Device device(scheduler, arena, 0, kCapacity, {});
  Queue& stream = device.queue(device.open_queue());
  Queue& preparation = two ? device.queue(device.open_queue()) : stream;
  Block* corrections = device.memory().allocate(8192);
  std::vector<char> bytes(4096);
  scheduler.start_recording();
  for (std::uint64_t launch = 0; launch < 4; ++launch) {
    const Span correction{corrections->position + launch % 2 * 4096, 4096};
    const auto ready = std::make_shared<SoftwareEvent>();
    const std::string number = " " + std::to_string(launch);
    preparation.submit({HostCallback{[] {}}, {}, false, {}, 40'000, "prepare" + number});
    preparation.submit({CopyToDevice{bytes.data(), correction}, {}, false, {}, {}, "correct" + number});
    preparation.submit({EventSignal{ready, ready->announce()}});
    stream.submit({EventWait{ready, ready->version()}});
    stream.submit({Compute{[](auto) {}}, {}, false, {{correction}, {}}, 60'000, "run" + number});
  }
  device.synchronize();
  for (const Interval& interval : scheduler.stop_recording())
    std::cout << name_of(interval.pipeline) << "\t" << interval.queue << "\t" << interval.operation << "\t"
              << interval.label << "\t" << interval.start << "\t" << interval.end << "\n";
  device.memory().free(corrections);
}

} // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "queued") {
    queued();
  } else if (what == "streams" && count == 3) {
    streams(std::string(arguments[2]) == "2");
  } else {
    std::cerr << "usage: card_bench queued | streams 1 | streams 2\n";
    return 2;
  }
  return 0;
}
