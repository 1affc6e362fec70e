#include "bridge/settings.h"

#include <c10/util/Exception.h>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

namespace spyre::bridge {
namespace {

constexpr double kGiB = 1 << 30;

// The variable's text; empty when it is unset.
std::string text_from(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Value of an environment variable as a number in [low, high], or `fallback` when it is unset or empty.
double number_from(const char* name, double fallback, double low, double high, bool whole) {
  const std::string text = text_from(name);
  if (text.empty())
    return fallback;
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text.c_str(), &end);
  const bool valid = errno == 0 && *end == '\0' && value >= low && value <= high &&
                     (!whole || value == static_cast<double>(static_cast<std::int64_t>(value)));
  const auto bound = [&](double number) {
    return whole ? std::to_string(static_cast<std::int64_t>(number)) : c10::str(number);
  };
  TORCH_CHECK_VALUE(valid, name, "=", text, " is not valid: a ", whole ? "whole " : "", "number from ",
                    bound(low), " to ", bound(high), " is expected");
  return value;
}

// Value of an environment variable among named ones; the first is the default.
template <class Value>
Value choice_from(const char* name, std::initializer_list<std::pair<const char*, Value>> choices) {
  const std::string text = text_from(name);
  if (text.empty())
    return choices.begin()->second;
  std::string names;
  for (const auto& [candidate, value] : choices) {
    if (text == candidate)
      return value;
    names += (names.empty() ? "" : " or ") + std::string(candidate);
  }
  TORCH_CHECK_VALUE(false, name, "=", text, " is not valid: ", names, " is expected");
}

Settings read_settings() {
  using card::ClockKind;
  using card::Mode;
  Settings settings;
  settings.mode = choice_from<Mode>("SPYRE_MODE", {{"PF", Mode::PF}, {"VF", Mode::VF}});
  settings.devices = static_cast<int>(number_from("SPYRE_DEVICES", 2, 1, 64, true));
  settings.domains = static_cast<std::uint32_t>(number_from("SPYRE_DOMAINS", 1, 1, 64, true));
  settings.memory_bytes = card::round_up(
      static_cast<std::uint64_t>(number_from("SPYRE_MEMORY_GB", 16, 0.001, 1024, false) * kGiB),
      card::kStickBytes * settings.domains);
  settings.handles = static_cast<std::uint32_t>(number_from("SPYRE_HANDLES", 16, 1, 1024, true));
  settings.clock =
      choice_from<ClockKind>("SPYRE_CLOCK", {{"wall", ClockKind::Wall}, {"virtual", ClockKind::Virtual}});
  settings.host_workers = static_cast<unsigned>(number_from("SPYRE_HOST_WORKERS", 16, 1, 256, true));
  settings.split_streams = choice_from<bool>("SPYRE_SPLIT_STREAMS", {{"on", true}, {"off", false}});
  settings.staging_buffers = static_cast<std::size_t>(number_from("SPYRE_STAGING_BUFFERS", 4, 1, 1024, true));
  settings.correction_regions =
      static_cast<std::size_t>(number_from("SPYRE_CORRECTION_REGIONS", 2, 1, 64, true));
  settings.eager_programs =
      static_cast<std::size_t>(number_from("SPYRE_EAGER_PROGRAMS", 4096, 0, 1 << 20, true));
  settings.fallback = choice_from<Fallback>(
      "SPYRE_FALLBACK", {{"allow", Fallback::Allow}, {"warn", Fallback::Warn}, {"error", Fallback::Error}});
  settings.launch = choice_from<LaunchScheme>(
      "SPYRE_LAUNCH",
      {{"patch", LaunchScheme::Patch}, {"windows", LaunchScheme::Windows}, {"graph", LaunchScheme::Graph}});
  return settings;
}

} // namespace

const Settings& Settings::get() {
  static const Settings settings = read_settings();
  return settings;
}

} // namespace spyre::bridge
