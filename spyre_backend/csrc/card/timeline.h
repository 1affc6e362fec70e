// What ran when: intervals of operations on pipelines.
#pragma once

#include "card/cost_model.h"

#include <cstdint>
#include <string>

namespace spyre::card {

enum class PipelineKind { Compute, ToDevice, ToHost, Peer, Host, Fetch };

// Name for people: "compute", "h2d", "d2h", "peer", "host", "fetch".
const char* name_of(PipelineKind kind);

// One operation that ran. Times in nanoseconds on the scheduler's clock.
struct Interval {
  int device;
  PipelineKind pipeline;
  std::int64_t queue;
  std::uint64_t operation; // number in the order of submission, over all queues
  std::string label;
  Ticks start;
  Ticks end;

  friend bool operator==(const Interval&, const Interval&) = default;
};

} // namespace spyre::card
