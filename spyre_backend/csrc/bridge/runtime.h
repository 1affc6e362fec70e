// The process-wide runtime: devices, and what is current in each thread.
#pragma once

#include "bridge/errors.h"
#include "bridge/settings.h"
#include "card/device.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spyre::bridge {

// Devices and their memory. Started by the first operation that needs a device, never by import.
class Runtime {
public:
  // Starts the runtime if necessary. Throws in a process that was forked from one whose runtime had started.
  static Runtime& get() {
    if (Runtime* runtime = instance_)
      return *runtime;
    return start();
  }
  static bool started() { return instance_ != nullptr; }
  // True in a forked child whose parent had started the runtime: devices can't be used there.
  static bool in_bad_fork();

  const card::Arena& arena() const { return arena_; }
  card::Device& device(c10::DeviceIndex index) { return *devices_[static_cast<std::size_t>(index)]; }
  // The device that owns a token address; throws for an address that is not ours.
  c10::DeviceIndex device_of(const void* token) const;
  // Bytes of the arena that belong to each device.
  std::uint64_t arena_per_device() const { return arena_per_device_; }

  card::Scheduler& scheduler() { return scheduler_; }
  card::EventBackend& events() { return *events_; }

  // The queue that prepares launches for a stream: one of its own, or the stream itself where they are not
  // split.
  card::Queue& preparation_queue(card::Queue& stream);
  // The queue on which programs are uploaded to a device; it has no other work.
  card::Queue& upload_queue(c10::DeviceIndex index);
  // True for a queue that is no stream of the user's: one of the two above.
  bool prepares(const card::Queue& queue) const;

  // Waits for every device. Called at exit so that no worker outlives the interpreter.
  void shut_down();

private:
  explicit Runtime(const Settings& settings);
  static Runtime& start();

  static Runtime* instance_;
  card::Arena arena_;
  card::Scheduler scheduler_;
  std::unique_ptr<card::EventBackend> events_;
  std::uint64_t arena_per_device_;
  std::vector<std::unique_ptr<card::Device>> devices_;
  mutable std::mutex preparations_mutex_;
  std::unordered_map<const void*, card::Queue*> preparations_; // by stream, or by device for uploads
};

// What threads do before they sleep for another one (card::Scheduler::Options::before_sleep). Set before the
// runtime starts.
void set_before_sleep(std::function<std::function<void()>()> before_sleep);

// Number of devices, without starting the runtime. Throws for an invalid setting.
c10::DeviceIndex device_count();

// Current device of this thread.
c10::DeviceIndex current_device();
// Throws for an index that is not a device.
void set_device(c10::DeviceIndex index);
// As set_device, for destructors: sets whatever it is given.
void set_device_unchecked(c10::DeviceIndex index) noexcept;
// `index`, or the current device for -1. Throws for an index that is not a device.
c10::DeviceIndex checked_index(c10::DeviceIndex index);

// Current stream of this thread on a device.
c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream default_stream(c10::DeviceIndex index);
// A stream of its own; lower priority numbers go first.
c10::Stream new_stream(c10::DeviceIndex index, int priority);
// One of a fixed set of streams, handed out in turn.
c10::Stream pool_stream(c10::DeviceIndex index);

// Where this thread's allocations go on devices; by default bound to the emptiest memory domain.
const card::Placement& current_placement();
void set_placement(card::Placement placement);

// The queue behind a stream.
card::Queue& queue_of(const c10::Stream& stream);
// The queue of the current stream of a device, without building a c10::Stream.
card::Queue& current_queue(c10::DeviceIndex index);

// Runs `call` on the current stream of a device, after everything submitted before, and returns when it is
// done. Throws what `call` throws, and the card's errors as Python sees them.
template <class Call> void compute_on(c10::DeviceIndex index, Call&& call) {
  translated([&] { current_queue(index).compute(std::forward<Call>(call)); });
}

// Submits an operation; the card's errors as Python sees them.
inline void submit_to(card::Queue& queue, card::Operation operation) {
  translated([&] { queue.submit(std::move(operation)); });
}

// Host address that a token stands for. The caller has waited for the work that writes there.
inline void* backing_of(const Runtime& runtime, const void* token) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(token) + runtime.arena().delta());
}

} // namespace spyre::bridge
