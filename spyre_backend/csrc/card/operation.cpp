// What the kinds of operations are to the scheduler: their names, checks, footprints, costs and pipelines.
#include "card/operation.h"

#include "card/device.h"
#include "card/error.h"
#include "card/item.h"
#include "card/match.h"
#include "card/scheduler.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

namespace spyre::card {

const char* name_of(PipelineKind kind) {
  switch (kind) {
  case PipelineKind::Compute:
    return "compute";
  case PipelineKind::ToDevice:
    return "h2d";
  case PipelineKind::ToHost:
    return "d2h";
  case PipelineKind::Peer:
    return "peer";
  case PipelineKind::Host:
    return "host";
  case PipelineKind::Fetch:
    return "fetch";
  }
  return "unknown";
}

const char* label_of(std::size_t kind) {
  // In the order of Operation::body.
  constexpr std::array kLabels{"host callback", "copy to device", "copy to host", "copy to peer",
                               "compute",       "fill",           "signal",       "wait"};
  return kLabels[kind];
}

void check_transfer(const Operation& operation) {
  const auto check = [](const Span& span) {
    if (span.position % kStickBytes != 0)
      throw InvalidArgument("a transfer starts at position " + std::to_string(span.position) +
                            " of device memory, which is not a multiple of " + std::to_string(kStickBytes) +
                            " bytes");
  };
  std::visit(Match{
                 [&](const CopyToDevice& op) { check(op.device); },
                 [&](const CopyToHost& op) { check(op.device); },
                 [&](const CopyPeer& op) {
                   check(op.source);
                   check(op.target);
                   if (op.source.bytes != op.target.bytes)
                     throw InvalidArgument("a copy between devices has a source of " +
                                           std::to_string(op.source.bytes) + " bytes and a target of " +
                                           std::to_string(op.target.bytes));
                 },
                 [](const auto&) {},
             },
             operation.body);
}

Footprint footprint_of(Operation& operation) {
  Footprint all = std::move(operation.footprint);
  std::visit(Match{
                 [&](const CopyToDevice& op) { all.writes.push_back(op.device); },
                 [&](const CopyToHost& op) { all.reads.push_back(op.device); },
                 [&](const CopyPeer& op) {
                   all.reads.push_back(op.source);
                   all.writes.push_back(op.target);
                 },
                 [&](const Fill& op) { all.writes.push_back(op.device); },
                 [](const auto&) {},
             },
             operation.body);
  return all;
}

Ticks Scheduler::cost_of(const Item& item) const {
  const CostModel& costs = options_.costs;
  const Operation& operation = item.operation;
  const auto transfer = [&](std::uint64_t bytes, double rate) {
    return costs.transfer + CostModel::at_rate(bytes, rate);
  };
  const Ticks own =
      operation.cost
          ? *operation.cost
          : std::visit(
                Match{
                    [&](const HostCallback&) { return costs.host_callback; },
                    [&](const CopyToDevice& op) { return transfer(op.device.bytes, costs.to_device_rate); },
                    [&](const CopyToHost& op) { return transfer(op.device.bytes, costs.to_host_rate); },
                    [&](const CopyPeer& op) { return transfer(op.source.bytes, costs.peer_rate); },
                    [&](const Compute&) { return costs.compute; },
                    [&](const Fill& op) {
                      return costs.compute + CostModel::at_rate(op.device.bytes, costs.memory_rate);
                    },
                    [](const auto&) { return Ticks{0}; },
                },
                operation.body);
  return own + (item.fetch == nullptr ? 0 : std::max(Ticks{0}, item.fetch->end - item.start));
}

Pipeline* Scheduler::pipeline_of(const Item& item) const {
  Device& device = item.queue->device_;
  return std::visit(Match{
                        [&](const HostCallback&) { return const_cast<Pipeline*>(&host_); },
                        [&](const CopyToDevice&) { return &device.to_device(); },
                        [&](const CopyToHost&) { return &device.to_host(); },
                        [&](const CopyPeer&) { return &device.peer(); },
                        [&](const Compute&) { return &device.compute(); },
                        [&](const Fill&) { return &device.compute(); },
                        [](const auto&) { return static_cast<Pipeline*>(nullptr); },
                    },
                    item.operation.body);
}

} // namespace spyre::card
