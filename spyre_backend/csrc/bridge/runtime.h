// The process-wide runtime: settings, devices, and what is current in each thread.
#pragma once

#include "card/device.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spyre::bridge {

// What the environment decides, read once, when the first setting is needed. An invalid value is an error
// that names variable and value.
struct Settings {
  int devices = 2;                // SPYRE_DEVICES, 1 to 64
  std::uint64_t memory_bytes = 0; // SPYRE_MEMORY_GB per device, 16 by default
  std::uint32_t handles = 16;     // SPYRE_HANDLES, region handles per device
  static const Settings& get();
};

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
  std::uint64_t bytes_per_device() const { return bytes_per_device_; }

  // Waits for every device. Called at exit so that no worker outlives the interpreter.
  void shut_down();

private:
  explicit Runtime(const Settings& settings);
  static Runtime& start();

  static Runtime* instance_;
  card::Arena arena_;
  std::uint64_t bytes_per_device_;
  std::vector<std::unique_ptr<card::Device>> devices_;
};

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
// A stream of its own.
c10::Stream new_stream(c10::DeviceIndex index);
// One of a fixed set of streams, handed out in turn.
c10::Stream pool_stream(c10::DeviceIndex index);

// The queue behind a stream.
card::Queue& queue_of(const c10::Stream& stream);
// The queue of the current stream of a device, without building a c10::Stream.
card::Queue& current_queue(c10::DeviceIndex index);

// Host address that a token stands for. The caller has waited for the work that writes there.
inline void* backing_of(const Runtime& runtime, const void* token) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(token) + runtime.arena().delta());
}

} // namespace spyre::bridge
