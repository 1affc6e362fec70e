// Waits that can never end: how they are found, and who fails then.
#include "card/device.h"
#include "card/error.h"
#include "card/item.h"
#include "card/queue.h"
#include "card/scheduler.h"

#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace spyre::card {
namespace {

std::string stream_text(const Queue& queue) {
  return "stream " + std::to_string(queue.id()) + " of device " + std::to_string(queue.device().index());
}

} // namespace

std::string wait_text(const EventWait& wait) {
  return wait.event->name() + " (version " + std::to_string(wait.version) + ")";
}

const EventWait* Scheduler::parked_wait(const Queue& queue) const {
  if (queue.in_flight_ || queue.items_.empty())
    return nullptr;
  const Item& head = *queue.items_.front();
  if (!head.waits || head.blockers != 0)
    return nullptr;
  return std::get_if<EventWait>(&head.operation.body);
}

std::vector<Queue*> Scheduler::blockers_of(const Queue& queue) const {
  std::vector<Queue*> result;
  if (queue.in_flight_ || queue.items_.empty())
    return result;
  const Item& head = *queue.items_.front();
  for (const std::uint64_t id : head.predecessors)
    if (const auto item = tracked_.find(id); item != tracked_.end())
      result.push_back(item->second->queue);
  if (const EventWait* wait = parked_wait(queue)) {
    // Any later version reaches this one too.
    const auto signal = pending_signals_.lower_bound({wait->event.get(), wait->version});
    if (signal != pending_signals_.end() && signal->first.first == wait->event.get())
      result.push_back(signal->second);
  }
  return result;
}

void Scheduler::look_for_deadlock(Queue& queue) {
  // A path of queues, each waiting for the next, from `queue` back to it.
  std::vector<Queue*> path;
  std::set<Queue*> seen;
  const std::function<bool(Queue&)> search = [&](Queue& at) {
    path.push_back(&at);
    for (Queue* next : blockers_of(at)) {
      if (next == &queue)
        return true;
      if (seen.insert(next).second && search(*next))
        return true;
    }
    path.pop_back();
    return false;
  };
  if (!search(queue))
    return;
  std::string text = "deadlock:";
  for (std::size_t i = 0; i < path.size(); ++i) {
    const Queue& next = *path[(i + 1) % path.size()];
    text += (i == 0 ? " " : "; ") + stream_text(*path[i]);
    if (const EventWait* wait = parked_wait(*path[i]))
      text += " waits for " + wait_text(*wait) + ", which " + stream_text(next) + " signals only later";
    else
      text += " waits for memory that " + stream_text(next) + " uses first";
  }
  for (Queue* member : path) {
    if (parked_wait(*member) == nullptr)
      continue;
    fail(*member, std::make_exception_ptr(Deadlock(text)));
    bury_head(*member);
    changed_.push_back(member);
  }
}

bool Scheduler::give_up_waits(bool shutting_down) {
  bool any = false;
  for (Queue* queue : queues_) {
    const EventWait* wait = parked_wait(*queue);
    if (wait == nullptr)
      continue;
    any = true;
    const std::string what =
        stream_text(*queue) + " waits for " + wait_text(*wait) + ", which no submitted operation can signal";
    fail(*queue, shutting_down ? std::make_exception_ptr(ShutDown("shut down: " + what))
                               : std::make_exception_ptr(Deadlock("deadlock: " + what)));
    bury_head(*queue);
    changed_.push_back(queue);
  }
  return any;
}

} // namespace spyre::card
