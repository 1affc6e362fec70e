#include "bridge/runtime.h"

#include "bridge/allocator.h"

#include <algorithm>
#include <atomic>
#include <c10/util/Exception.h>
#include <functional>
#include <mutex>
#include <pthread.h>

namespace spyre::bridge {
namespace {

constexpr int kPoolStreams = 32;

std::mutex start_mutex;
std::atomic<bool> bad_fork{false};
std::function<std::function<void()>()> before_sleep;

thread_local c10::DeviceIndex tls_device = 0;
// Stream ids by device; shorter than the number of devices while the default stream is current.
thread_local std::vector<card::QueueId> tls_streams;
thread_local card::Placement tls_placement;

card::Device* resolve_peer(std::uint64_t position) {
  Runtime& runtime = Runtime::get();
  const std::uint64_t index = position / runtime.arena_per_device();
  return index < static_cast<std::uint64_t>(device_count())
             ? &runtime.device(static_cast<c10::DeviceIndex>(index))
             : nullptr;
}

} // namespace

Runtime* Runtime::instance_ = nullptr;

Runtime::Runtime(const Settings& settings)
    : arena_(card::RegionAllocator::footprint(settings.memory_bytes) *
             static_cast<std::uint64_t>(settings.devices)),
      scheduler_({settings.clock, {}, settings.host_workers, before_sleep}),
      events_(std::make_unique<card::SoftwareEvents>()),
      arena_per_device_(card::RegionAllocator::footprint(settings.memory_bytes)) {
  for (int index = 0; index < settings.devices; ++index) {
    devices_.push_back(std::make_unique<card::Device>(
        scheduler_, arena_, static_cast<std::uint64_t>(index) * arena_per_device_, settings.memory_bytes,
        card::MemoryOptions{settings.mode, settings.handles, settings.domains}, index));
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
  auto* runtime = translated([] { return new Runtime(Settings::get()); });
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
  return static_cast<c10::DeviceIndex>(arena_.position(token) / arena_per_device_);
}

card::Queue& Runtime::preparation_queue(card::Queue& stream) {
  if (!Settings::get().split_streams)
    return stream;
  const std::lock_guard lock(preparations_mutex_);
  card::Queue*& queue = preparations_[&stream];
  if (queue == nullptr) {
    card::Device& device = stream.device();
    queue = &device.queue(device.open_queue(stream.priority()));
  }
  return *queue;
}

card::Queue& Runtime::upload_queue(c10::DeviceIndex index) {
  card::Device& card = device(index);
  const std::lock_guard lock(preparations_mutex_);
  card::Queue*& queue = preparations_[&card];
  if (queue == nullptr)
    queue = &card.queue(card.open_queue());
  return *queue;
}

bool Runtime::prepares(const card::Queue& queue) const {
  const std::lock_guard lock(preparations_mutex_);
  return std::any_of(preparations_.begin(), preparations_.end(),
                     [&](const auto& known) { return known.second == &queue; });
}

void Runtime::shut_down() {
  scheduler_.shut_down();
  for (auto& device : devices_)
    device->end_threads();
}

void set_before_sleep(std::function<std::function<void()>()> call) {
  before_sleep = std::move(call);
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

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  index = checked_index(index);
  return stream_of(index, Runtime::get().device(index).open_queue(priority));
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

const card::Placement& current_placement() {
  return tls_placement;
}

void set_placement(card::Placement placement) {
  tls_placement = std::move(placement);
}

card::Queue& queue_of(const c10::Stream& stream) {
  return translated([&]() -> card::Queue& {
    return Runtime::get().device(checked_index(stream.device_index())).queue(stream.id());
  });
}

card::Queue& current_queue(c10::DeviceIndex index) {
  return translated([&]() -> card::Queue& { return Runtime::get().device(index).queue(current_id(index)); });
}

} // namespace spyre::bridge
