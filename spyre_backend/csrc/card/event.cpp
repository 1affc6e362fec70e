#include "card/event.h"

#include "card/error.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

namespace spyre::card {
namespace {

// Failures that an event keeps for who names an old version. Operations that were submitted and wait don't
// depend on it: the scheduler hands them their failure when the event fires.
constexpr std::size_t kKeptFailures = 64;

std::string numbered() {
  static std::atomic<std::uint64_t> last{0};
  return "event " + std::to_string(++last);
}

} // namespace

SoftwareEvent::SoftwareEvent(std::string name) : name_(name.empty() ? numbered() : std::move(name)) {}

std::uint64_t SoftwareEvent::announce() {
  const std::lock_guard lock(mutex_);
  return ++announced_;
}

std::uint64_t SoftwareEvent::version() const {
  const std::lock_guard lock(mutex_);
  return announced_;
}

void SoftwareEvent::signal(std::uint64_t version, Ticks time) {
  {
    const std::lock_guard lock(mutex_);
    if (version > reached_) {
      reached_ = version;
      time_ = time;
    }
  }
  reached_cv_.notify_all();
}

void SoftwareEvent::fail(std::uint64_t version, std::exception_ptr cause, Ticks time) {
  {
    const std::lock_guard lock(mutex_);
    if (version > reached_) {
      reached_ = version;
      time_ = time;
    }
    failures_.emplace(version, std::move(cause));
    if (failures_.size() > kKeptFailures) {
      forgotten_ = failures_.begin()->first;
      failures_.erase(failures_.begin());
    }
  }
  reached_cv_.notify_all();
}

bool SoftwareEvent::reached(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return reached_ >= version;
}

std::exception_ptr SoftwareEvent::failure(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  if (const auto failure = failures_.find(version); failure != failures_.end())
    return failure->second;
  if (version == 0 || version > forgotten_)
    return nullptr;
  return std::make_exception_ptr(InvalidArgument("version " + std::to_string(version) + " of " + name_ +
                                                 " is so old that its outcome is no longer known"));
}

void SoftwareEvent::block(std::uint64_t version) const {
  std::unique_lock lock(mutex_);
  reached_cv_.wait(lock, [&] { return reached_ >= version; });
}

Ticks SoftwareEvent::time() const {
  const std::lock_guard lock(mutex_);
  if (announced_ == 0)
    throw InvalidArgument("the event has not been recorded");
  if (reached_ < announced_)
    throw InvalidArgument("the event has been recorded, but the work before it has not completed");
  return time_;
}

} // namespace spyre::card
