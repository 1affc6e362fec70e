#include "bridge/allocator.h"

#include "card/error.h"

#include <algorithm>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <memory>

namespace spyre::bridge {
namespace {

constexpr c10::DeviceIndex kNoDevice = -1;
// Device whose memory host kernels of this thread allocate from.
__attribute__((tls_model("initial-exec"))) thread_local c10::DeviceIndex tls_host_kernel_device = kNoDevice;

c10::Device device_at(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

void delete_lease(void* context) {
  delete static_cast<Lease*>(context);
}

std::atomic<void (*)()> garbage_collector{nullptr};

// Tensors in reference cycles are given up before a request is refused.
card::Block* allocate_block(c10::DeviceIndex index, std::size_t nbytes) {
  card::RegionAllocator& memory = Runtime::get().device(index).memory();
  const card::Placement& placement = current_placement();
  try {
    if (card::Block* block = memory.try_allocate(nbytes, card::Use::Tensor, placement);
        C10_LIKELY(block != nullptr))
      return block;
    if (const auto collect = garbage_collector.load())
      collect();
    return memory.allocate(nbytes, card::Use::Tensor, placement);
  } catch (const card::OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "spyre:", static_cast<int>(index),
                     " out of memory: ", error.what());
  } catch (const card::CardError& error) {
    throw_translated(error);
  }
}

// The CPU allocator of the process while a runtime is active.
//
// Memory has its own address as context, in and out of a HostKernelScope, because libraries use the raw
// interface, where the address is all there is; and it may be freed in another thread or scope than it was
// allocated in. So one deleter serves both kinds and tells them apart by the address.
class HostSideAllocator final : public c10::Allocator {
public:
  explicit HostSideAllocator(c10::Allocator& inner, const card::Arena& arena)
      : inner_(inner), free_(inner.raw_deleter()), arena_(arena) {
    TORCH_INTERNAL_ASSERT(free_ != nullptr, "the CPU allocator has no raw deleter");
  }

  c10::DataPtr allocate(std::size_t nbytes) override {
    const c10::DeviceIndex index = tls_host_kernel_device;
    if (C10_LIKELY(index == kNoDevice || nbytes == 0)) {
      c10::DataPtr data = inner_.allocate(nbytes);
      [[maybe_unused]] const bool exchanged = data.compare_exchange_deleter(free_, &release);
      return data;
    }
    void* address = arena_.backing(allocate_block(index, nbytes)->position);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    inner_.copy_data(dest, src, count);
  }

  // The block behind memory from a HostKernelScope; null for other memory.
  card::Block* block_of(const c10::DataPtr& data) const {
    if (data.get_deleter() != &release || !arena_.holds_backing(data.get()))
      return nullptr;
    return owner_of(data.get()).memory().at(arena_.backing_position(data.get()));
  }

  static HostSideAllocator* instance;

private:
  static void release(void* address) {
    const HostSideAllocator& self = *instance;
    if (C10_LIKELY(!self.arena_.holds_backing(address))) {
      self.free_(address);
      return;
    }
    // A forked child inherits memory, but not the runtime that owns it.
    if (!Runtime::started())
      return;
    card::RegionAllocator& memory = self.owner_of(address).memory();
    memory.free(memory.at(self.arena_.backing_position(address)));
  }

  card::Device& owner_of(const void* address) const {
    Runtime& runtime = Runtime::get();
    return runtime.device(
        static_cast<c10::DeviceIndex>(arena_.backing_position(address) / runtime.arena_per_device()));
  }

  c10::Allocator& inner_;
  const c10::DeleterFnPtr free_;
  const card::Arena& arena_;
};

HostSideAllocator* HostSideAllocator::instance = nullptr;

c10::CachingAllocator::StatArray stats_of(const card::Gauge& gauge) {
  c10::CachingAllocator::StatArray result;
  auto& all = result[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = gauge.current;
  all.peak = gauge.peak;
  all.allocated = gauge.total;
  all.freed = gauge.freed;
  return result;
}

} // namespace

Lease::~Lease() {
  if (c10::StorageImpl* twin = twin_.load())
    c10::raw::intrusive_ptr::decref(twin);
  // A forked child inherits tensors, but not the runtime that owns their memory.
  if (block == nullptr || !Runtime::started())
    return;
  card::Device& owner = Runtime::get().device(device);
  if (streams_.empty()) {
    owner.memory().free(block);
    return;
  }
  // Each recorded stream that still has work holds one share of the block; the last one frees it.
  auto share =
      std::shared_ptr<card::Block>(block, [&owner](card::Block* freed) { owner.memory().free(freed); });
  for (const c10::Stream& stream : streams_) {
    card::Queue& queue = queue_of(stream);
    if (queue.idle())
      continue;
    try {
      queue.submit({card::HostCallback{[] {}}, share});
    } catch (const card::ShutDown&) {
      // A stream that was shut down has completed its work.
    }
  }
}

c10::StorageImpl* Lease::twin(std::size_t nbytes) {
  c10::StorageImpl* known = twin_.load(std::memory_order_acquire);
  if (C10_LIKELY(known != nullptr)) {
    if (C10_UNLIKELY(known->nbytes() != nbytes))
      known->set_nbytes(nbytes);
    return known;
  }
  void* address = Runtime::get().arena().backing(block->position);
  auto fresh = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(nbytes),
      c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(), /*resizable=*/true);
  if (twin_.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel))
    return fresh.release();
  return known;
}

void Lease::record(const c10::Stream& stream) {
  const std::lock_guard lock(streams_mutex_);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end())
    streams_.push_back(stream);
}

Lease* lease_of(const c10::DataPtr& data) {
  return data.cast_context<Lease>(&delete_lease);
}

c10::DataPtr SpyreAllocator::allocate(std::size_t nbytes) {
  return allocate_on(current_device(), nbytes);
}

c10::DataPtr SpyreAllocator::allocate_on(c10::DeviceIndex device, std::size_t nbytes) {
  if (nbytes == 0)
    return {nullptr, device_at(device)};
  auto owner = std::make_unique<Lease>(device, allocate_block(device, nbytes));
  void* token = Runtime::get().arena().token(owner->block->position);
  return {token, owner.release(), &delete_lease, device_at(device)};
}

void SpyreAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  Runtime& runtime = Runtime::get();
  const c10::DeviceIndex index = runtime.device_of(dest);
  runtime.device(index).synchronize();
  compute_on(index, [&] { default_copy_data(backing_of(runtime, dest), backing_of(runtime, src), count); });
}

bool SpyreAllocator::initialized() {
  return Runtime::started();
}

void SpyreAllocator::emptyCache(c10::MempoolId_t) {
  if (!Runtime::started())
    return;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index)
    Runtime::get().device(index).memory().release_free_regions();
}

void SpyreAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (Lease* owner = lease_of(data))
    owner->record(stream);
}

c10::CachingDeviceAllocator::DeviceStats SpyreAllocator::getDeviceStats(c10::DeviceIndex device) {
  const card::MemoryStats stats = Runtime::get().device(checked_index(device)).memory().stats();
  c10::CachingDeviceAllocator::DeviceStats result;
  result.allocation = result.active = stats_of(stats.allocations);
  result.allocated_bytes = result.active_bytes = stats_of(stats.allocated_bytes);
  result.requested_bytes = stats_of(stats.requested_bytes);
  result.segment = stats_of(stats.regions);
  result.reserved_bytes = stats_of(stats.reserved_bytes);
  result.num_alloc_retries = stats.retries;
  result.num_ooms = stats.out_of_memory;
  result.num_device_alloc = stats.regions.total;
  result.num_device_free = stats.regions.freed;
  return result;
}

void SpyreAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  Runtime::get().device(checked_index(device)).memory().reset_totals();
}

void SpyreAllocator::resetPeakStats(c10::DeviceIndex device) {
  Runtime::get().device(checked_index(device)).memory().reset_peaks();
}

std::pair<std::size_t, std::size_t> SpyreAllocator::getMemoryInfo(c10::DeviceIndex device) {
  card::RegionAllocator& memory = Runtime::get().device(checked_index(device)).memory();
  return {memory.free_bytes(), memory.capacity()};
}

SpyreAllocator& device_allocator() {
  // Storages may outlive every static object, so the allocator is never destroyed.
  static auto* allocator = new SpyreAllocator();
  return *allocator;
}

void install_host_side_allocator(const card::Arena& arena) {
  HostSideAllocator::instance = new HostSideAllocator(*c10::GetCPUAllocator(), arena);
  c10::SetCPUAllocator(HostSideAllocator::instance, /*priority=*/255);
}

void set_garbage_collector(void (*collect)()) {
  garbage_collector = collect;
}

HostKernelScope::HostKernelScope(c10::DeviceIndex device) : outer_(tls_host_kernel_device) {
  tls_host_kernel_device = device;
}

HostKernelScope::~HostKernelScope() {
  tls_host_kernel_device = outer_;
}

bool adopt(c10::StorageImpl& storage, c10::DeviceIndex device) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  card::Block* block = HostSideAllocator::instance->block_of(data);
  if (block == nullptr)
    return false;
  auto owner = std::make_unique<Lease>(device, block);
  data.release_context();
  void* token = Runtime::get().arena().token(block->position);
  storage.set_data_ptr_noswap({token, owner.release(), &delete_lease, device_at(device)});
  storage.set_allocator(&device_allocator());
  return true;
}

namespace {
const c10::AllocatorRegisterer<c10::DeviceType::PrivateUse1> registered(&device_allocator());
} // namespace

} // namespace spyre::bridge
