// The commands a queue understands. Each is complete when its effect can be seen by every command that starts
// later.
#pragma once

#include "card/cost_model.h"
#include "card/event.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace spyre::card {

// Bytes of device memory: a position in the arena and a length. Checked against live allocations when the
// command runs.
struct Span {
  std::uint64_t position = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

// The device memory that an operation reads and writes. Operations of different queues whose footprints
// conflict run in the order of their submission.
struct Footprint {
  std::vector<Span> reads = {};
  std::vector<Span> writes = {};

  bool empty() const { return reads.empty() && writes.empty(); }
};

// Runs `call` on the host. What it throws fails the queue.
struct HostCallback {
  std::function<void()> call;
};

// Copies device.bytes from host memory to the device. The device side starts at a stick.
struct CopyToDevice {
  const void* host;
  Span device;
};

// Copies device.bytes from the device to host memory. The device side starts at a stick.
struct CopyToHost {
  Span device;
  void* host;
};

// Copies from one device's memory to another's; both spans have the same length and start at a stick.
struct CopyPeer {
  Span source;
  Span target;
};

// Runs `kernel` on the compute pipeline: at most one at a time per device.
//
// With a program, the kernel is handed the bytes that the fetch unit read. The fetch unit runs ahead: it may
// read the program of the next queued Compute before what is queued before that has run. A fetch barrier
// makes it read when the Compute starts.
struct Compute {
  using Kernel = std::function<void(std::span<const std::byte> program)>;
  Kernel kernel;
  Span program = {};
  bool fetch_barrier = true;
};

// Sets every byte of the span.
struct Fill {
  Span device;
  std::uint8_t value;
};

// Marks the given version of the event as reached.
struct EventSignal {
  std::shared_ptr<Event> event;
  std::uint64_t version;
};

// Holds the queue until the given version of the event is reached. Owns the event: its handle may be gone by
// then.
struct EventWait {
  std::shared_ptr<Event> event;
  std::uint64_t version;
};

struct Operation {
  std::variant<HostCallback, CopyToDevice, CopyToHost, CopyPeer, Compute, Fill, EventSignal, EventWait> body;
  // Memory the operation uses: released when it has completed, never before.
  std::shared_ptr<void> keeps = {};
  // True for work that is long enough to be worth a thread switch: the submitter goes on at once.
  bool detached = false;
  // What the operation touches besides the spans in its body.
  Footprint footprint = {};
  // Time it takes on the virtual clock, in nanoseconds, where the cost model can't know.
  std::optional<Ticks> cost = {};
  // Name in timelines; the kind of operation by default.
  std::string label = {};
};

} // namespace spyre::card
