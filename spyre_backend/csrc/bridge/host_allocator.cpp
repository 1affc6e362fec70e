#include "bridge/host_allocator.h"

#include "bridge/runtime.h"
#include "card/error.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace spyre::bridge {
namespace {

constexpr std::size_t kAlignment = 4096;

// One piece of pinned memory. Reused when it is free and the streams that were recorded on it are done.
struct Piece {
  void* address;
  std::size_t bytes;
  std::vector<c10::Stream> streams;
};

// Keeps freed pieces by size for reuse: pinning is what costs time on a real host.
class SpyreHostAllocator final : public at::HostAllocator {
public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0)
      return {nullptr, cpu};
    // A forked child may read pinned memory, but the devices it is for are out of reach: Runtime::get() says
    // so.
    Runtime::get();
    const std::size_t bytes = card::round_up(nbytes, kAlignment);
    const std::lock_guard lock(mutex_);
    void* address = nullptr;
    if (const auto spare = spare_.find(bytes); spare != spare_.end()) {
      address = spare->second;
      spare_.erase(spare);
    } else {
      address = std::aligned_alloc(kAlignment, bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "cannot allocate ", bytes,
                       " bytes of pinned host memory");
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(bytes);
      ++stats_.num_host_alloc;
    }
    used_.emplace(address, Piece{address, bytes, {}});
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(bytes);
    return {address, address, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  bool record_event(void* address, void*, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto piece = used_.find(address);
    if (piece == used_.end())
      return false;
    piece->second.streams.push_back(stream);
    return true;
  }

  void empty_cache() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [bytes, address] : spare_) {
      std::free(address);
      stats_.allocations.decrease(1);
      stats_.allocated_bytes.decrease(bytes);
      ++stats_.num_host_free;
    }
    spare_.clear();
  }

  at::HostStats get_stats() override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard lock(mutex_);
    for (auto* stat :
         {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes})
      stat->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    const std::lock_guard lock(mutex_);
    for (auto* stat :
         {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes})
      stat->reset_peak();
  }

  bool holds(const void* address) {
    const std::lock_guard lock(mutex_);
    auto piece = used_.upper_bound(const_cast<void*>(address));
    if (piece == used_.begin())
      return false;
    --piece;
    return static_cast<const char*>(address) < static_cast<const char*>(piece->first) + piece->second.bytes;
  }

private:
  static void release(void* address);

  void give_back(void* address) {
    std::shared_ptr<Piece> piece;
    {
      const std::lock_guard lock(mutex_);
      const auto entry = used_.find(address);
      piece = std::shared_ptr<Piece>(new Piece(std::move(entry->second)), [this](Piece* done) {
        const std::lock_guard inner(mutex_);
        spare_.emplace(done->bytes, done->address);
        delete done;
      });
      used_.erase(entry);
      stats_.active_requests.decrease(1);
      stats_.active_bytes.decrease(piece->bytes);
    }
    if (!Runtime::started())
      return;
    for (const c10::Stream& stream : piece->streams) {
      card::Queue& queue = queue_of(stream);
      if (queue.idle())
        continue;
      try {
        queue.submit({card::HostCallback{[] {}}, piece});
      } catch (const card::ShutDown&) {
        // A stream that was shut down has completed its work.
      }
    }
  }

  std::mutex mutex_;
  std::map<void*, Piece> used_;
  std::unordered_multimap<std::size_t, void*> spare_;
  at::HostStats stats_;
};

SpyreHostAllocator& instance() {
  // Pinned tensors may outlive every static object.
  static auto* allocator = new SpyreHostAllocator();
  return *allocator;
}

void SpyreHostAllocator::release(void* address) {
  instance().give_back(address);
}

const bool registered = [] {
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &instance());
  return true;
}();

} // namespace

bool is_pinned(const void* address) {
  return instance().holds(address);
}

at::HostAllocator& host_allocator() {
  return instance();
}

} // namespace spyre::bridge
