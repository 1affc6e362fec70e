// One operation on its way through a queue. Internal to the scheduler.
#pragma once

#include "card/operation.h"
#include "card/queue.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace spyre::card {

// One reading of a program, by who comes first: a thread that reads ahead, or the one that runs the Compute.
struct Fetch {
  explicit Fetch(const Span& program) : program(program) {}

  const Span program;
  std::once_flag once;
  std::vector<std::byte> bytes;
  std::exception_ptr fault;
  // When it was read; `end` stays before `start` where nobody asked. On the virtual clock set by the
  // scheduler.
  Ticks start = 0;
  Ticks end = -1;
};

struct Item {
  Operation operation;
  Queue* queue = nullptr;
  std::uint64_t id = 0; // in the order of submission, over all queues
  TurnState* turn = nullptr;

  std::vector<std::uint64_t> predecessors; // of other queues, from footprints
  std::vector<Item*> successors;
  std::size_t blockers = 0; // predecessors that have not completed
  bool has_footprint = false;
  bool waits = false; // for a version that its event has not reached

  Pipeline* pipeline = nullptr; // null for waits and signals
  std::size_t kind = 0;         // index of the body
  bool takes_place = true;      // of its pipeline
  unsigned passed_over = 0;     // how often a more urgent operation went first
  Ticks start = 0;
  Ticks end = 0;

  std::shared_ptr<Fetch> fetch; // null while nobody has begun to read the program
  std::exception_ptr fault;     // why the version that a wait waits for failed
};

// Name in timelines of the kind of operation with this index in Operation::body.
const char* label_of(std::size_t kind);
// Throws InvalidArgument for a transfer that does not start at a stick or whose sides differ in length.
void check_transfer(const Operation& operation);
// Everything the operation touches: its body's spans and what it declares, which it gives away.
Footprint footprint_of(Operation& operation);
// An awaited version, for messages.
std::string wait_text(const EventWait& wait);

} // namespace spyre::card
