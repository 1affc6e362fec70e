// Edges between operations of different streams, against a model that keeps every byte by itself.
#include "card/tracker.h"
#include "harness.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

using namespace spyre::card;
using namespace spyre::card::test;

namespace {

constexpr std::uint64_t kBytes = 64;

// The definition: a read follows the last writer of each of its bytes; a write follows the last writer and,
// of each stream, the last reader since. Operations that have completed and those of the same stream don't
// count.
class Model {
public:
  std::vector<Edge> admit(std::uint64_t id, std::uint64_t stream, const Footprint& footprint) {
    std::set<Edge> edges;
    const auto follow = [&](std::uint64_t from, Hazard hazard) {
      if (live_.count(from) != 0 && live_[from] != stream)
        edges.insert({from, hazard});
    };
    each(footprint.reads, [&](Byte& byte) { follow(byte.writer, Hazard::ReadAfterWrite); });
    each(footprint.writes, [&](Byte& byte) {
      follow(byte.writer, Hazard::WriteAfterWrite);
      for (const auto& [reader_stream, reader] : byte.readers)
        follow(reader, Hazard::WriteAfterRead);
    });
    each(footprint.reads, [&](Byte& byte) { byte.readers[stream] = id; });
    each(footprint.writes, [&](Byte& byte) { byte = {id, {}}; });
    live_[id] = stream;
    return {edges.begin(), edges.end()};
  }
  void retire(std::uint64_t id) { live_.erase(id); }

private:
  struct Byte {
    std::uint64_t writer = 0;
    std::map<std::uint64_t, std::uint64_t> readers;
  };
  template <class Call> void each(const std::vector<Span>& spans, Call&& call) {
    for (const Span& span : spans)
      for (std::uint64_t i = 0; i < span.bytes; ++i)
        call(bytes_[span.position + i]);
  }
  std::map<std::uint64_t, Byte> bytes_;
  std::map<std::uint64_t, std::uint64_t> live_;
};

Footprint random_footprint(std::mt19937& random) {
  Footprint footprint;
  for (auto* spans : {&footprint.reads, &footprint.writes})
    for (unsigned count = random() % 3; count != 0; --count) {
      const std::uint64_t position = random() % kBytes;
      spans->push_back({position, random() % std::min<std::uint64_t>(16, kBytes - position + 1)});
    }
  return footprint;
}

} // namespace

TEST(R4_5_edges_are_exactly_the_hazards) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    Tracker tracker;
    Model model;
    // Per stream, operations complete in order; across streams in any.
    std::map<std::uint64_t, std::vector<std::uint64_t>> queues;
    for (std::uint64_t id = 1; id <= 500; ++id) {
      const std::uint64_t stream = 1 + random() % 4;
      const Footprint footprint = random_footprint(random);
      CHECK(tracker.admit(id, stream, footprint) == model.admit(id, stream, footprint));
      queues[stream].push_back(id);
      std::vector<std::uint64_t>& done = queues[1 + random() % 4];
      if (random() % 3 != 0 && !done.empty()) {
        tracker.retire(done.front());
        model.retire(done.front());
        done.erase(done.begin());
      }
    }
    for (auto& [stream, ids] : queues)
      for (const std::uint64_t id : ids)
        tracker.retire(id);
    CHECK(tracker.outstanding() == 0 && tracker.segments() == 0);
  }
}

TEST(R4_5_read_after_write) {
  Tracker tracker;
  tracker.admit(1, 1, {{}, {{0, 100}}});
  CHECK((tracker.admit(2, 2, {{{99, 10}}, {}}) == std::vector<Edge>{{1, Hazard::ReadAfterWrite}}));
  CHECK(tracker.admit(3, 2, {{{100, 10}}, {}}).empty());
  CHECK(tracker.admit(4, 1, {{{0, 10}}, {}}).empty());
}

TEST(R4_5_write_after_read) {
  Tracker tracker;
  tracker.admit(1, 1, {{{0, 10}, {50, 10}}, {}});
  CHECK((tracker.admit(2, 2, {{}, {{5, 1}, {55, 1}}}) == std::vector<Edge>{{1, Hazard::WriteAfterRead}}));
  CHECK(tracker.admit(3, 3, {{{20, 10}}, {}}).empty());
}

TEST(R4_5_write_after_write) {
  Tracker tracker;
  tracker.admit(1, 1, {{}, {{0, 10}}});
  CHECK((tracker.admit(2, 2, {{}, {{9, 5}}}) == std::vector<Edge>{{1, Hazard::WriteAfterWrite}}));
  tracker.retire(1);
  CHECK((tracker.admit(3, 1, {{}, {{0, 14}}}) == std::vector<Edge>{{2, Hazard::WriteAfterWrite}}));
}

TEST(R4_7_memory_is_bounded_over_many_launches) {
  Tracker tracker;
  for (std::uint64_t id = 1; id <= 100'000; ++id) {
    tracker.admit(id, id % 2, {{{id % 7 * 100, 64}}, {{10'000 + id % 5 * 128, 128}}});
    if (id > 8)
      tracker.retire(id - 8);
    CHECK(tracker.outstanding() <= 8 && tracker.segments() <= 32);
  }
}
