// One card: its memory, its pipelines and its queues.
#pragma once

#include "card/allocator.h"
#include "card/memory.h"
#include "card/operation.h"
#include "card/queue.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace spyre::card {

using QueueId = std::int64_t;

// A pipeline executes one operation at a time. Recursive, because a kernel may itself submit to another queue
// of its device.
using Pipeline = std::recursive_mutex;

class Device {
public:
  // Manages [position, position + capacity) of the arena, which outlives the device.
  Device(const Arena& arena, std::uint64_t position, std::uint64_t capacity, std::uint32_t handles);

  RegionAllocator& memory() { return memory_; }

  // Queue 0 always exists. Throws InvalidArgument for an id that open_queue() did not return.
  Queue& queue(QueueId id);
  Queue& default_queue() { return *default_queue_; }
  // Opens one more queue. Ids are never used again; a queue without pending work costs no thread.
  QueueId open_queue();

  // Waits for all queues, then throws the error of the lowest-numbered failed one. Every failed queue is
  // usable again.
  void synchronize();
  // True when no queue has pending work.
  bool idle() const;
  void shut_down();

  Pipeline& compute() { return compute_; }
  Pipeline& to_device() { return to_device_; }
  Pipeline& to_host() { return to_host_; }

  // Host address of the span. Throws MemoryFault unless it lies inside one live allocation of this arena.
  std::byte* access(const Span& span) const;

  // Tells devices of one arena apart: resolves a span of another device for peer copies.
  using Resolver = std::byte* (*)(const Span&);
  void set_peer_resolver(Resolver resolver) { peers_ = resolver; }

  bool holds(std::uint64_t position) const { return position - position_ < capacity_; }

private:
  const Arena& arena_;
  const std::uint64_t position_;
  const std::uint64_t capacity_;
  RegionAllocator memory_;
  Resolver peers_ = nullptr;
  Pipeline compute_;
  Pipeline to_device_;
  Pipeline to_host_;
  mutable std::mutex queues_mutex_;
  std::map<QueueId, std::unique_ptr<Queue>> queues_;
  Queue* default_queue_;
};

} // namespace spyre::card
