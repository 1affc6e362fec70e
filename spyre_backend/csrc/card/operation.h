// The commands a queue understands. Each is complete when its effect can be seen by every command that starts
// later.
#pragma once

#include "card/event.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

namespace spyre::card {

// Bytes of device memory: a position in the arena and a length. Checked against live allocations when the
// command runs.
struct Span {
  std::uint64_t position;
  std::uint64_t bytes;
};

// Runs `call` on the host. What it throws fails the queue.
struct HostCallback {
  std::function<void()> call;
};

// Copies span.bytes from host memory to the device.
struct CopyToDevice {
  const void* host;
  Span device;
};

// Copies span.bytes from the device to host memory.
struct CopyToHost {
  Span device;
  void* host;
};

// Copies from one device's memory to another's; both spans have the same length.
struct CopyPeer {
  Span source;
  Span target;
};

// Runs `kernel` on the compute pipeline: at most one at a time per device.
struct Compute {
  std::function<void()> kernel;
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
};

} // namespace spyre::card
