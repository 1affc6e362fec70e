// One card: its memory, its pipelines and its queues.
#pragma once

#include "card/allocator.h"
#include "card/memory.h"
#include "card/operation.h"
#include "card/queue.h"
#include "card/scheduler.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace spyre::card {

using QueueId = std::int64_t;

// Reads programs ahead of their Compute, in the order of submission, one at a time. Guarded by the
// scheduler's lock.
struct FetchUnit {
  std::map<std::uint64_t, Item*> queued; // Computes with a program that have not started
  Item* held = nullptr;                  // the one whose program has been read
};

class Device {
public:
  // Manages [position, position + RegionAllocator::footprint(capacity)) of the arena. Arena and scheduler
  // outlive the device.
  Device(Scheduler& scheduler, const Arena& arena, std::uint64_t position, std::uint64_t capacity,
         const MemoryOptions& options, int index = 0);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const { return index_; }
  Scheduler& scheduler() const { return scheduler_; }
  RegionAllocator& memory() { return memory_; }

  // Queue 0 always exists. Throws InvalidArgument for an id that open_queue() did not return.
  Queue& queue(QueueId id);
  Queue& default_queue() { return *default_queue_; }
  // Opens one more queue. Ids are never used again; a queue costs no thread.
  QueueId open_queue(int priority = 0);
  // All queues, by id.
  std::vector<Queue*> queues() const;

  // Waits for all queues, then throws the error that came first. Every failed queue is usable again.
  void synchronize();
  // Ends the threads of the pipelines, once the scheduler was shut down.
  void end_threads();
  // True when no queue has pending work.
  bool idle() const;

  Pipeline& compute() { return compute_; }
  Pipeline& to_device() { return to_device_; }
  Pipeline& to_host() { return to_host_; }
  Pipeline& peer() { return peer_; }
  FetchUnit& fetch_unit() { return fetch_unit_; }

  // Host address of the span. Throws MemoryFault unless it lies inside one live allocation of this arena.
  std::byte* access(const Span& span) const;
  // The effect of an operation, on the calling thread; for the scheduler. `program` as the fetch unit read
  // it.
  void execute(Operation& operation, std::span<const std::byte> program);
  // The effect of a transfer from the host, on the calling thread. Throws MemoryFault as access() does.
  void store(const Span& span, const void* bytes) const;
  // The bytes of a program at this moment. Throws MemoryFault as access() does.
  std::vector<std::byte> read_program(const Span& span) const;

  // Tells devices of one arena apart, for peer copies: the device that has a position, null if none has.
  using Resolver = Device* (*)(std::uint64_t position);
  void set_peer_resolver(Resolver resolver) { peers_ = resolver; }

  bool holds(std::uint64_t position) const {
    return position - position_ < RegionAllocator::footprint(capacity_);
  }

private:
  // This device, or the peer that has the position.
  const Device& owner_of(std::uint64_t position) const;
  // Runs `store(address)` with the host address of a span that an operation fills. Every operation that
  // writes goes through here, so that the fetch unit never sees half of a program.
  template <class Store> void write(const Span& span, Store&& store) const;

  Scheduler& scheduler_;
  const Arena& arena_;
  const std::uint64_t position_;
  const std::uint64_t capacity_;
  const int index_;
  RegionAllocator memory_;
  Resolver peers_ = nullptr;
  Pipeline compute_;
  Pipeline to_device_;
  Pipeline to_host_;
  Pipeline peer_;
  FetchUnit fetch_unit_;
  mutable std::mutex program_mutex_; // a program is either written or read
  mutable std::mutex queues_mutex_;
  std::map<QueueId, std::unique_ptr<Queue>> queues_;
  Queue* default_queue_;
};

} // namespace spyre::card
