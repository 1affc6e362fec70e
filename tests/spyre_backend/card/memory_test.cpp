// Regions, blocks, faults.
#include "harness.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace spyre::card;
using namespace spyre::card::test;

namespace {

// One allocator, driven by numbers; remembers what it handed out.
struct Player {
  explicit Player(Mode mode) : card(ClockKind::Wall, {mode, 8}) {}
  RegionAllocator& memory() { return card.device.memory(); }

  Card card;
  std::vector<Block*> live;
};

// What is live is aligned, inside one region of its use, and disjoint; the figures are those of what is live.
void check(Player& player) {
  std::vector<RegionInfo> regions = player.memory().regions();
  std::vector<const Block*> blocks(player.live.begin(), player.live.end());
  std::sort(blocks.begin(), blocks.end(),
            [](const Block* a, const Block* b) { return a->position < b->position; });
  std::int64_t tensors = 0, bytes = 0, programs = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = *blocks[i];
    CHECK(block.live && block.length >= block.requested);
    CHECK(block.offset % kStickBytes == 0 && block.length % kStickBytes == 0);
    CHECK(i == 0 || blocks[i - 1]->position + blocks[i - 1]->length <= block.position);
    const auto region = std::find_if(regions.begin(), regions.end(),
                                     [&](const RegionInfo& info) { return info.id == block.region; });
    CHECK(region != regions.end());
    CHECK(region->position + block.offset == block.position && block.offset + block.length <= region->length);
    const bool tensor = region->use == Use::Tensor;
    tensors += tensor ? 1 : 0;
    (tensor ? bytes : programs) += static_cast<std::int64_t>(block.length);
  }
  const MemoryStats stats = player.memory().stats();
  CHECK(stats.allocated_bytes.current == bytes);
  CHECK(stats.program_bytes.current == programs);
  CHECK(stats.allocations.current == tensors);
  CHECK(stats.regions.current == static_cast<std::int64_t>(regions.size()));
}

} // namespace

TEST(R2_1_R2_2_R2_3_random_operations_in_PF_and_VF_side_by_side) {
  Player pf(Mode::PF), vf(Mode::VF);
  std::mt19937 random(7);
  int refused = 0;
  for (int step = 0; step < 10'000; ++step) {
    const unsigned kind = random() % 100;
    const std::uint64_t bytes = 1 + (kind % 4 == 0 ? random() % (2 * kMiB) : random() % 4096);
    const std::size_t pick = pf.live.empty() ? 0 : random() % pf.live.size();
    std::vector<Block*> now;
    for (Player* player : {&pf, &vf}) {
      if (kind < 45 && !player->live.empty()) {
        player->memory().free(player->live[pick]);
        player->live[pick] = player->live.back();
        player->live.pop_back();
      } else if (kind == 99) {
        player->memory().release_free_regions();
      } else {
        const MemoryStats before = player->memory().stats();
        try {
          player->live.push_back(player->memory().allocate(bytes, kind > 90 ? Use::Program : Use::Tensor));
          now.push_back(player->live.back());
        } catch (const OutOfMemory&) {
          ++refused;
          CHECK(player->memory().stats().allocated_bytes.current == before.allocated_bytes.current);
        }
      }
      CHECK(player->memory().stats().regions.current <= 8 || player == &pf);
    }
    CHECK(pf.live.size() == vf.live.size());
    if (now.size() == 2)
      CHECK(now[0]->region == now[1]->region && now[0]->offset == now[1]->offset &&
            now[0]->length == now[1]->length);
    if (step % 500 == 0) {
      check(pf);
      check(vf);
    }
  }
  CHECK(refused < 10'000);
  for (Player* player : {&pf, &vf}) {
    for (Block* block : player->live)
      player->memory().free(block);
    player->live.clear();
    check(*player);
    player->memory().release_free_regions();
    player->memory().free(player->memory().allocate(kCapacity));
  }
}

TEST(R2_3_many_tensors_never_exceed_the_handles) {
  Card card(ClockKind::Wall, {Mode::VF, 4});
  std::vector<Block*> live;
  for (int i = 0; i < 10'000; ++i)
    live.push_back(card.device.memory().allocate(1000));
  CHECK(card.device.memory().stats().regions.current <= 4);
  message_of<OutOfMemory>([&] { card.device.memory().allocate(kCapacity); });
  for (Block* block : live)
    card.device.memory().free(block);
}

TEST(R2_5_a_second_free_is_a_fault) {
  Card card;
  Block* block = card.device.memory().allocate(100);
  card.device.memory().free(block);
  message_of<MemoryFault>([&] { card.device.memory().free(block); });
}

TEST(R2_6_neighbours_merge) {
  Card card(ClockKind::Wall, {Mode::VF, 1});
  RegionAllocator& memory = card.device.memory();
  std::vector<Block*> live;
  for (int i = 0; i < 64; ++i)
    live.push_back(memory.allocate(kMiB));
  message_of<OutOfMemory>([&] { memory.allocate(kMiB); });
  for (std::size_t i = 0; i < 64; i += 2)
    memory.free(live[i]);
  message_of<OutOfMemory>([&] { memory.allocate(2 * kMiB); });
  for (std::size_t i = 1; i < 64; i += 2)
    memory.free(live[i]);
  memory.free(memory.allocate(kCapacity));
}

TEST(R2_7_zero_bytes_are_no_block) {
  Card card;
  CHECK(card.device.memory().allocate(0) == nullptr);
  CHECK(card.device.memory().stats().allocations.total == 0);
}

TEST(R2_9_statistics_are_exact_under_threads) {
  Card card;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2'000; ++i)
        card.device.memory().free(card.device.memory().allocate(300));
    });
  for (std::thread& thread : threads)
    thread.join();
  const MemoryStats stats = card.device.memory().stats();
  CHECK(stats.allocations.total == 8'000 && stats.allocations.freed == 8'000 &&
        stats.allocations.current == 0);
  CHECK(stats.allocated_bytes.total == 8'000 * 384 && stats.requested_bytes.total == 8'000 * 300);
  CHECK(stats.allocations.peak >= 1 && stats.allocations.peak <= 4);
}

TEST(R2_10_free_regions_return_with_their_handles) {
  Card card;
  RegionAllocator& memory = card.device.memory();
  Block* small = memory.allocate(100);
  Block* large = memory.allocate(20 * kMiB);
  CHECK(memory.stats().regions.current == 2);
  memory.free(large);
  memory.release_free_regions();
  CHECK(memory.stats().regions.current == 1);
  memory.free(small);
  memory.release_free_regions();
  CHECK(memory.stats().regions.current == 0 && memory.stats().reserved_bytes.current == 0);
  memory.free(memory.allocate(kCapacity));
}

TEST(R2_12_placement_is_explicit_and_binding) {
  Card card(ClockKind::Wall, {Mode::VF, 16, 4});
  RegionAllocator& memory = card.device.memory();
  const auto domain_of = [&](RegionId id) {
    for (const RegionInfo& region : memory.regions())
      if (region.id == id)
        return region.domain;
    throw std::logic_error("no such region");
  };
  Block* bound = memory.allocate(1000, Use::Tensor, {{2}});
  CHECK((memory.describe(bound->position + 900).placement == Placement{{2}}));
  CHECK(domain_of(bound->region) == 2);
  // A full domain is out of memory, whatever the others have.
  message_of<OutOfMemory>([&] { memory.allocate(kCapacity / 4, Use::Tensor, {{2}}); });
  memory.free(memory.allocate(kCapacity / 4, Use::Tensor, {{1}}));
  memory.free(bound);

  const Placement turns{{3, 0}, 256};
  Block* spread = memory.allocate(1100, Use::Tensor, turns);
  const Description description = memory.describe(spread->position);
  CHECK(description.placement == turns && description.chunks.size() == 5);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < description.chunks.size(); ++i) {
    CHECK(domain_of(description.chunks[i].region) == (i % 2 == 0 ? 3u : 0u));
    CHECK(description.chunks[i].length == (i < 4 ? 256 : 128));
    bytes += description.chunks[i].length;
  }
  CHECK(bytes == spread->length && memory.stats().allocated_bytes.current == 1152);
  CHECK(memory.stats().allocations.current == 1);

  // Its bytes are contiguous to operations, and checked as one allocation.
  std::vector<char> out(1152), in(1152);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<char>(i * 7);
  Queue& queue = card.device.default_queue();
  queue.submit({CopyToDevice{out.data(), {spread->position, 1152}}});
  queue.submit({CopyToHost{{spread->position, 1152}, in.data()}});
  queue.synchronize();
  CHECK(in == out);
  queue.submit({Fill{{spread->position + 1024, 129}, 0}});
  message_of<MemoryFault>([&] { queue.synchronize(); });
  memory.free(spread);
  message_of<OutOfMemory>([&] { memory.allocate(kCapacity, Use::Tensor, {{0, 1}, kMiB}); });
  CHECK(memory.stats().allocated_bytes.current == 0);
  memory.free(memory.allocate(kCapacity - 8 * kMiB, Use::Tensor, {{0, 1, 2, 3}, 2 * kMiB}));
  message_of<InvalidArgument>([&] { memory.allocate(1, Use::Tensor, {{4}}); });
  message_of<InvalidArgument>([&] { memory.allocate(1, Use::Tensor, {{0, 1}, 100}); });
  message_of<InvalidArgument>([&] { memory.allocate(1, Use::Tensor, {{0, 1}}); });
}

TEST(R2_13_programs_and_tensors_never_share_a_region) {
  Card card;
  RegionAllocator& memory = card.device.memory();
  std::vector<Block*> programs, tensors;
  for (int i = 0; i < 100; ++i) {
    programs.push_back(memory.allocate(1000, Use::Program));
    tensors.push_back(memory.allocate(1000));
  }
  for (const Block* program : programs) {
    CHECK(memory.check(program->position + 999, 1) == Use::Program);
    for (const Block* tensor : tensors)
      CHECK(tensor->region != program->region);
  }
  CHECK(memory.check(tensors[0]->position, 1) == Use::Tensor);
  for (Block* program : programs)
    memory.free(program);
  // Memory that programs have left serves tensors only after its region was given back.
  memory.release_free_regions();
  memory.free(memory.allocate(40 * kMiB));
}

TEST(R2_14_out_of_memory_names_the_figures_and_changes_nothing) {
  Card card;
  RegionAllocator& memory = card.device.memory();
  Block* block = memory.allocate(kMiB);
  const MemoryStats before = memory.stats();
  const std::string text = message_of<OutOfMemory>([&] { memory.allocate(kCapacity); });
  CHECK(contains(text, std::to_string(kCapacity)) && contains(text, std::to_string(kCapacity - kMiB)));
  CHECK(contains(text, "1 of 8 region handles"));
  CHECK(contains(text, "by region: 0: 7340032 free, largest 7340032"));
  const MemoryStats after = memory.stats();
  CHECK(after.allocated_bytes.current == before.allocated_bytes.current);
  CHECK(after.regions.current == before.regions.current && after.out_of_memory == 1);
  memory.free(block);
  // Cached free regions are given up before a request is refused.
  Block* first = memory.allocate(8 * kMiB);
  memory.free(first);
  memory.free(memory.allocate(kCapacity));
  CHECK(memory.stats().retries == 1);
}

TEST(S_3_accesses_are_checked) {
  Card card;
  Block* block = card.device.memory().allocate(256);
  const Span inside{block->position, 256};
  std::vector<char> bytes(1024, 'x');
  Queue& queue = card.device.default_queue();
  queue.submit({CopyToDevice{bytes.data(), inside}});
  queue.synchronize();
  queue.submit({CopyToDevice{bytes.data(), {block->position, 257}}});
  CHECK(contains(message_of<MemoryFault>([&] { queue.synchronize(); }), "past the end"));
  card.device.memory().free(block);
  queue.submit({CopyToHost{inside, bytes.data()}});
  CHECK(contains(message_of<MemoryFault>([&] { queue.synchronize(); }), "no live allocation"));
}

TEST(S_6_transfers_start_at_a_stick) {
  Card card;
  Block* block = card.device.memory().allocate(256);
  char bytes[256] = {};
  Queue& queue = card.device.default_queue();
  const Span odd{block->position + 4, 4};
  CHECK(
      contains(message_of<InvalidArgument>([&] { queue.submit({CopyToDevice{bytes, odd}}); }), "128 bytes"));
  message_of<InvalidArgument>([&] { queue.submit({CopyToHost{odd, bytes}}); });
  message_of<InvalidArgument>([&] { queue.submit({CopyPeer{{block->position, 4}, odd}}); });
  message_of<InvalidArgument>(
      [&] { queue.submit({CopyPeer{{block->position, 4}, {block->position + 128, 8}}}); });
  queue.submit({CopyToDevice{bytes, {block->position + 128, 4}}});
  queue.synchronize();
  card.device.memory().free(block);
}

TEST(R2_8_tokens_are_inaccessible_and_map_to_backing) {
  Card card;
  Block* block = card.device.memory().allocate(256);
  std::byte* token = card.arena.token(block->position);
  CHECK(card.arena.holds_token(token) && !card.arena.holds_token(card.arena.backing(block->position)));
  CHECK(token + card.arena.delta() == card.arena.backing(block->position));
  CHECK(card.device.memory().find(block->position + 200)->position == block->position);
  CHECK(!card.device.memory().find(block->position + 256));
  card.device.memory().free(block);
}
