#include "card/device.h"

#include "card/error.h"

#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <variant>

namespace spyre::card {

Device::Device(Scheduler& scheduler, const Arena& arena, std::uint64_t position, std::uint64_t capacity,
               const MemoryOptions& options, int index)
    : scheduler_(scheduler), arena_(arena), position_(position), capacity_(capacity), index_(index),
      memory_(arena, position, capacity, options), compute_(PipelineKind::Compute, index, 1),
      to_device_(PipelineKind::ToDevice, index, 1), to_host_(PipelineKind::ToHost, index, 1),
      peer_(PipelineKind::Peer, index, 1) {
  default_queue_ = queues_.emplace(0, std::make_unique<Queue>(scheduler, *this, 0)).first->second.get();
}

Device::~Device() {
  queues_.clear();
  end_threads();
}

void Device::end_threads() {
  for (Pipeline* pipeline : {&compute_, &to_device_, &to_host_, &peer_})
    scheduler_.stop(*pipeline);
}

Queue& Device::queue(QueueId id) {
  if (id == 0)
    return *default_queue_;
  const std::lock_guard lock(queues_mutex_);
  const auto entry = queues_.find(id);
  if (entry == queues_.end())
    throw InvalidArgument("there is no stream " + std::to_string(id) + " on this device");
  return *entry->second;
}

QueueId Device::open_queue(int priority) {
  const std::lock_guard lock(queues_mutex_);
  const QueueId id = queues_.rbegin()->first + 1;
  queues_.emplace(id, std::make_unique<Queue>(scheduler_, *this, id, priority));
  return id;
}

std::vector<Queue*> Device::queues() const {
  const std::lock_guard lock(queues_mutex_);
  std::vector<Queue*> result;
  for (const auto& [id, queue] : queues_)
    result.push_back(queue.get());
  return result;
}

void Device::synchronize() {
  std::exception_ptr first;
  std::uint64_t earliest = std::numeric_limits<std::uint64_t>::max();
  for (Queue* queue : queues()) {
    std::uint64_t order = 0;
    auto error = queue->drain(&order);
    if (error && order < earliest) {
      first = std::move(error);
      earliest = order;
    }
  }
  if (first)
    std::rethrow_exception(first);
}

bool Device::idle() const {
  for (const Queue* queue : queues())
    if (!queue->idle())
      return false;
  return true;
}

const Device& Device::owner_of(std::uint64_t position) const {
  const Device* peer = holds(position) || peers_ == nullptr ? nullptr : peers_(position);
  return peer == nullptr ? *this : *peer;
}

std::byte* Device::access(const Span& span) const {
  const Device& owner = owner_of(span.position);
  owner.memory_.check(span.position, span.bytes);
  return owner.arena_.backing(span.position);
}

template <class Store> void Device::write(const Span& span, Store&& store) const {
  const Device& owner = owner_of(span.position);
  const Use use = owner.memory_.check(span.position, span.bytes);
  std::unique_lock lock(owner.program_mutex_, std::defer_lock);
  if (use == Use::Program)
    lock.lock();
  store(owner.arena_.backing(span.position));
}

void Device::store(const Span& span, const void* bytes) const {
  write(span, [&](std::byte* target) { std::memcpy(target, bytes, span.bytes); });
}

std::vector<std::byte> Device::read_program(const Span& span) const {
  const Device& owner = owner_of(span.position);
  const std::byte* bytes = owner.access(span);
  const std::lock_guard lock(owner.program_mutex_);
  return {bytes, bytes + span.bytes};
}

void Device::execute(Operation& operation, std::span<const std::byte> program) {
  if (auto* callback = std::get_if<HostCallback>(&operation.body)) {
    callback->call();
  } else if (auto* compute = std::get_if<Compute>(&operation.body)) {
    compute->kernel(program);
  } else if (const auto* in = std::get_if<CopyToDevice>(&operation.body)) {
    store(in->device, in->host);
  } else if (const auto* out = std::get_if<CopyToHost>(&operation.body)) {
    std::memcpy(out->host, access(out->device), out->device.bytes);
  } else if (const auto* across = std::get_if<CopyPeer>(&operation.body)) {
    const std::byte* source = access(across->source);
    write(across->target, [&](std::byte* target) { std::memcpy(target, source, across->target.bytes); });
  } else if (const auto* fill = std::get_if<Fill>(&operation.body)) {
    write(fill->device, [&](std::byte* target) { std::memset(target, fill->value, fill->device.bytes); });
  }
}

} // namespace spyre::card
