// What the environment decides.
#pragma once

#include "card/allocator.h"
#include "card/scheduler.h"

#include <cstdint>

namespace spyre::bridge {

// Read once, when the first setting is needed. An invalid value is a ValueError that names variable and
// value.
enum class LaunchScheme { Patch, Windows, Graph };
enum class Fallback { Allow, Warn, Error };

struct Settings {
  card::Mode mode = card::Mode::PF;              // SPYRE_MODE, PF or VF
  int devices = 2;                               // SPYRE_DEVICES, 1 to 64
  std::uint64_t memory_bytes = 0;                // SPYRE_MEMORY_GB per device, 16 by default
  std::uint32_t handles = 16;                    // SPYRE_HANDLES, region handles of a device in VF mode
  std::uint32_t domains = 1;                     // SPYRE_DOMAINS, memory domains of a device
  card::ClockKind clock = card::ClockKind::Wall; // SPYRE_CLOCK, wall or virtual
  unsigned host_workers = 16;                    // SPYRE_HOST_WORKERS, host callbacks at a time
  bool split_streams = true;                     // SPYRE_SPLIT_STREAMS, on or off
  std::size_t staging_buffers = 4;               // SPYRE_STAGING_BUFFERS, of one prepared program
  std::size_t correction_regions = 2;            // SPYRE_CORRECTION_REGIONS, of one prepared program
  std::size_t eager_programs = 4096;             // SPYRE_EAGER_PROGRAMS, kept for eager operators; 0: none
  Fallback fallback = Fallback::Allow;           // SPYRE_FALLBACK, for eager calls that no program can run
  LaunchScheme launch = LaunchScheme::Patch;     // SPYRE_LAUNCH, how programs are launched
  static const Settings& get();
};

} // namespace spyre::bridge
