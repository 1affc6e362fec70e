// Device memory as PyTorch sees it.
#pragma once

#include "bridge/runtime.h"

#include <atomic>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <mutex>
#include <vector>

namespace spyre::bridge {

// Context of a DataPtr on the device: the description of one allocation. The DataPtr's address is a token of
// the arena.
//
// A DataPtr with our address but another context exists too (a tensor that came back through DLPack, a
// copy-on-write clone), so nobody casts a context before `lease_of` has looked at its deleter.
class Lease {
public:
  Lease(c10::DeviceIndex device, card::Block* block) : device(device), block(block) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // The storage that shows the same bytes to host kernels; made on first use and kept, so that views of one
  // storage keep sharing one. It does not own the memory.
  c10::StorageImpl* twin(std::size_t nbytes);
  // Delays reuse of the block until what is queued on the stream when the lease ends has completed.
  void record(const c10::Stream& stream);

  const c10::DeviceIndex device;
  card::Block* const block;

private:
  std::atomic<c10::StorageImpl*> twin_{nullptr};
  std::mutex streams_mutex_;
  std::vector<c10::Stream> streams_;
};

// The lease behind a DataPtr; null for memory of somebody else.
Lease* lease_of(const c10::DataPtr& data);

// The allocator of all spyre devices: allocates on the current one.
class SpyreAllocator final : public c10::DeviceAllocator {
public:
  c10::DataPtr allocate(std::size_t nbytes) override;
  c10::DataPtr allocate_on(c10::DeviceIndex device, std::size_t nbytes);
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

SpyreAllocator& device_allocator();

// What may free memory when there is none left; called without any lock of the card.
void set_garbage_collector(void (*collect)());

// Puts our allocator in front of the CPU allocator of the process. Outside of HostKernelScope it only passes
// calls on.
void install_host_side_allocator(const card::Arena& arena);

// While it lives, memory that host kernels allocate on this thread is device memory, so results are born on
// the device.
class HostKernelScope {
public:
  explicit HostKernelScope(c10::DeviceIndex device);
  ~HostKernelScope();
  HostKernelScope(const HostKernelScope&) = delete;
  HostKernelScope& operator=(const HostKernelScope&) = delete;

private:
  const c10::DeviceIndex outer_;
};

// If `storage` was born on `device` inside a HostKernelScope, makes it a device storage: same bytes, token
// address. Returns false for any other storage.
bool adopt(c10::StorageImpl& storage, c10::DeviceIndex device);

} // namespace spyre::bridge
