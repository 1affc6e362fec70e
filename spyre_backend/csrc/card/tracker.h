// Which outstanding operations of other queues an operation has to follow, derived from what they touch.
#pragma once

#include "card/operation.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace spyre::card {

enum class Hazard { ReadAfterWrite, WriteAfterRead, WriteAfterWrite };

// The operation must start after `from` has completed.
struct Edge {
  std::uint64_t from;
  Hazard hazard;

  friend auto operator<=>(const Edge&, const Edge&) = default;
};

// Keeps, for every byte range that an outstanding operation touches, its last writer and the last reader of
// each stream since: earlier readers of a stream have completed when its last one has.
//
// Knows nothing but numbers: positions of the arena, operations in the order of their submission, and the
// stream of each. Operations of one stream are ordered by their queue, so they get no edge. Entries go with
// their operation: memory is bounded by what is outstanding, whatever happened before. Not thread-safe.
class Tracker {
public:
  using Id = std::uint64_t;

  // Registers an operation and returns its edges to outstanding operations, sorted, each once.
  std::vector<Edge> admit(Id id, std::uint64_t stream, const Footprint& footprint);
  // The operation has completed. Unknown ids are ignored.
  void retire(Id id);

  std::size_t outstanding() const { return ranges_.size(); }
  std::size_t segments() const { return segments_.size(); }

private:
  struct Access {
    Id id;
    std::uint64_t stream;
  };
  struct Segment {
    std::uint64_t end;
    std::optional<Access> writer;
    std::vector<Access> readers;
  };
  using Segments = std::map<std::uint64_t, Segment>;

  // Makes `position` a border between segments, if it lies inside one.
  void split(std::uint64_t position);
  // Makes segments whose union is exactly the span and returns the first; all segments up to the span's end
  // belong to it.
  Segments::iterator cover(const Span& span);

  Segments segments_;
  std::unordered_map<Id, std::vector<Span>> ranges_;
};

} // namespace spyre::card
