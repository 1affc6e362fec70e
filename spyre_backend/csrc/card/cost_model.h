// How long things take on the virtual clock: data, to be replaced where better figures are known.
#pragma once

#include <cstdint>

namespace spyre::card {

// Time in nanoseconds.
using Ticks = std::int64_t;

// Rates in bytes per second, times in nanoseconds. The rates follow published figures of the card; the times
// are the simulator's assumptions, of the order that host runtimes of PCIe devices measure.
struct CostModel {
  // Host link: PCIe 5.0 x16, 32 GT/s a lane, 128b/130b (PCI Express Base Specification 5.0): 63 GB/s raw,
  // taken at 85 % for packet headers.
  double to_device_rate = 53.6e9;
  double to_host_rate = 53.6e9;
  // Card to card: one hop up and one hop down the same links.
  double peer_rate = 53.6e9;
  // LPDDR5 of one card: an assumption of 200 GB/s (eight cards of one drawer are quoted at 1.6 TB/s).
  double memory_rate = 200e9;

  // One card computes 300 tera-operations per second in 8 bits (IBM's announcement of the card); 16-bit
  // floats at half of that.
  double operation_rate = 150e12;

  Ticks transfer = 2'000;      // set-up of one transfer
  Ticks launch = 1'000;        // host, per submitted operation
  Ticks host_callback = 5'000; // one host callback
  Ticks compute = 10'000;      // one compute operation
  Ticks event = 500;           // host, per query of an event or a stream

  // Time of `amount` bytes or operations at a rate per second.
  static Ticks at_rate(std::uint64_t amount, double rate) {
    return static_cast<Ticks>(static_cast<double>(amount) / rate * 1e9 + 0.5);
  }
};

} // namespace spyre::card
