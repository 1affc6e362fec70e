#include "bridge/runtime.h"

#include "bridge/allocator.h"

#include <atomic>
#include <c10/util/Exception.h>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <pthread.h>

namespace spyre::bridge {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr int kPoolStreams = 32;

std::mutex start_mutex;
std::atomic<bool> bad_fork{false};

thread_local c10::DeviceIndex tls_device = 0;
// Stream ids by device; shorter than the number of devices while the default stream is current.
thread_local std::vector<card::QueueId> tls_streams;

// Value of an environment variable as a number in [low, high], or `fallback` when it is unset or empty.
double number_from(const char* name, double fallback, double low, double high, bool whole) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0')
    return fallback;
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text, &end);
  const bool valid = errno == 0 && *end == '\0' && value >= low && value <= high &&
                     (!whole || value == static_cast<double>(static_cast<std::int64_t>(value)));
  TORCH_CHECK_VALUE(valid, name, "=", text, " is not valid: a ", whole ? "whole " : "", "number from ", low,
                    " to ", high, " is expected");
  return value;
}

Settings read_settings() {
  Settings settings;
  settings.devices = static_cast<int>(number_from("SPYRE_DEVICES", 2, 1, 64, true));
  settings.memory_bytes =
      card::round_up(static_cast<std::uint64_t>(number_from("SPYRE_MEMORY_GB", 16, 0.001, 1024, false) *
                                                static_cast<double>(kGiB)),
                     card::kStickBytes);
  settings.handles = static_cast<std::uint32_t>(number_from("SPYRE_HANDLES", 16, 1, 1024, true));
  return settings;
}

std::byte* resolve_peer(const card::Span& span) {
  Runtime& runtime = Runtime::get();
  const auto index = static_cast<c10::DeviceIndex>(span.position / runtime.bytes_per_device());
  return runtime.device(index).access(span);
}

} // namespace

const Settings& Settings::get() {
  static const Settings settings = read_settings();
  return settings;
}

Runtime* Runtime::instance_ = nullptr;

Runtime::Runtime(const Settings& settings)
    : arena_(settings.memory_bytes * static_cast<std::uint64_t>(settings.devices)),
      bytes_per_device_(settings.memory_bytes) {
  for (int index = 0; index < settings.devices; ++index) {
    devices_.push_back(std::make_unique<card::Device>(
        arena_, static_cast<std::uint64_t>(index) * bytes_per_device_, bytes_per_device_, settings.handles));
    devices_.back()->set_peer_resolver(resolve_peer);
  }
}

Runtime& Runtime::start() {
  const std::lock_guard lock(start_mutex);
  TORCH_CHECK(
      !in_bad_fork(),
      "Cannot re-initialize the spyre runtime in a forked subprocess. To use spyre with multiprocessing, you "
      "must use the 'spawn' start method");
  if (instance_ != nullptr)
    return *instance_;
  auto* runtime = new Runtime(Settings::get());
  install_host_side_allocator(runtime->arena());
  pthread_atfork(nullptr, nullptr, [] {
    // Workers and locks of the parent don't exist here: the parent's runtime is left alone and never used
    // again.
    bad_fork = true;
    instance_ = nullptr;
  });
  instance_ = runtime;
  return *instance_;
}

bool Runtime::in_bad_fork() {
  return bad_fork;
}

c10::DeviceIndex Runtime::device_of(const void* token) const {
  TORCH_CHECK(arena_.holds_token(token), "the address ", token, " does not belong to a spyre device");
  return static_cast<c10::DeviceIndex>(arena_.position(token) / bytes_per_device_);
}

void Runtime::shut_down() {
  for (auto& device : devices_)
    device->shut_down();
}

c10::DeviceIndex device_count() {
  return static_cast<c10::DeviceIndex>(Settings::get().devices);
}

c10::DeviceIndex current_device() {
  return tls_device;
}

void set_device_unchecked(c10::DeviceIndex index) noexcept {
  tls_device = index;
}

void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "spyre device index ", static_cast<int>(index),
              " is out of range: there are ", static_cast<int>(device_count()), " devices");
  tls_device = index;
}

c10::DeviceIndex checked_index(c10::DeviceIndex index) {
  if (index == -1)
    return tls_device;
  TORCH_CHECK(index >= 0 && index < device_count(), "spyre device index ", static_cast<int>(index),
              " is out of range: there are ", static_cast<int>(device_count()), " devices");
  return index;
}

namespace {

card::QueueId current_id(c10::DeviceIndex index) {
  const auto slot = static_cast<std::size_t>(index);
  return slot < tls_streams.size() ? tls_streams[slot] : 0;
}

c10::Stream stream_of(c10::DeviceIndex index, card::QueueId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, index), id);
}

} // namespace

c10::Stream current_stream(c10::DeviceIndex index) {
  index = checked_index(index);
  return stream_of(index, current_id(index));
}

c10::Stream default_stream(c10::DeviceIndex index) {
  return stream_of(checked_index(index), 0);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::DeviceIndex index = checked_index(stream.device_index());
  const c10::Stream previous = current_stream(index);
  if (tls_streams.size() <= static_cast<std::size_t>(index))
    tls_streams.resize(static_cast<std::size_t>(index) + 1, 0);
  tls_streams[static_cast<std::size_t>(index)] = stream.id();
  return previous;
}

c10::Stream new_stream(c10::DeviceIndex index) {
  index = checked_index(index);
  return stream_of(index, Runtime::get().device(index).open_queue());
}

c10::Stream pool_stream(c10::DeviceIndex index) {
  index = checked_index(index);
  static std::mutex mutex;
  static std::vector<std::vector<card::QueueId>> pools;
  static std::vector<std::size_t> turns;
  card::Device& device = Runtime::get().device(index);
  const std::lock_guard lock(mutex);
  const auto slot = static_cast<std::size_t>(index);
  if (pools.size() <= slot) {
    pools.resize(slot + 1);
    turns.resize(slot + 1, 0);
  }
  if (pools[slot].size() < kPoolStreams)
    pools[slot].push_back(device.open_queue());
  return stream_of(index, pools[slot][turns[slot]++ % kPoolStreams]);
}

card::Queue& queue_of(const c10::Stream& stream) {
  return Runtime::get().device(checked_index(stream.device_index())).queue(stream.id());
}

card::Queue& current_queue(c10::DeviceIndex index) {
  return Runtime::get().device(index).queue(current_id(index));
}

} // namespace spyre::bridge
