// One operation on its way through a queue. Internal to the scheduler.
#pragma once

#include "card/operation.h"
#include "card/queue.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace spyre::card {

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

  bool fetched = false; // the fetch unit has read the program
  std::vector<std::byte> program;
  Ticks fetch_end = 0;
  // What fails the queue in the operation's place: of the fetch, or of the version that a wait waits for.
  std::exception_ptr fault;
};

} // namespace spyre::card
