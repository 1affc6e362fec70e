#include "card/event.h"

#include "card/error.h"

#include <algorithm>
#include <string>

namespace spyre::card {
namespace {

std::string text_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an error without a message";
  }
}

} // namespace

std::uint64_t Event::announce() {
  const std::lock_guard lock(mutex_);
  return ++announced_;
}

std::uint64_t Event::version() const {
  const std::lock_guard lock(mutex_);
  return announced_;
}

void Event::signal(std::uint64_t version) {
  {
    const std::lock_guard lock(mutex_);
    if (version > reached_) {
      reached_ = version;
      time_ = Clock::now();
    }
    // A version that failed earlier stays failed for those who still wait for it; older failures have no
    // waiter left.
    failures_.erase(failures_.begin(), failures_.lower_bound(std::min(version, reached_)));
  }
  reached_cv_.notify_all();
}

void Event::fail(std::uint64_t version, std::exception_ptr cause) {
  {
    const std::lock_guard lock(mutex_);
    reached_ = std::max(reached_, version);
    time_ = Clock::now();
    failures_.emplace(version, std::move(cause));
  }
  reached_cv_.notify_all();
}

bool Event::reached(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return reached_ >= version;
}

void Event::wait(std::uint64_t version) const {
  std::unique_lock lock(mutex_);
  reached_cv_.wait(lock, [&] { return reached_ >= version; });
  if (const auto failure = failures_.find(version); failure != failures_.end())
    throw Poisoned("the work an event marks failed: " + text_of(failure->second));
}

Event::Clock::time_point Event::time() const {
  const std::lock_guard lock(mutex_);
  if (announced_ == 0)
    throw InvalidArgument("the event has not been recorded");
  if (reached_ < announced_)
    throw InvalidArgument("the event has been recorded, but the work before it has not completed");
  return time_;
}

} // namespace spyre::card
