#include "card/tracker.h"

#include "card/mutant.h"

#include <algorithm>
#include <utility>

namespace spyre::card {

void Tracker::split(std::uint64_t position) {
  auto after = segments_.upper_bound(position);
  if (after == segments_.begin())
    return;
  auto segment = std::prev(after);
  if (segment->first == position || segment->second.end <= position)
    return;
  Segment tail = segment->second;
  segment->second.end = position;
  segments_.emplace_hint(after, position, std::move(tail));
}

Tracker::Segments::iterator Tracker::cover(const Span& span) {
  const std::uint64_t end = span.position + span.bytes;
  split(span.position);
  split(end);
  std::uint64_t position = span.position;
  auto next = segments_.lower_bound(position);
  while (position < end) {
    if (next == segments_.end() || next->first > position) {
      const std::uint64_t gap = next == segments_.end() ? end : std::min(end, next->first);
      next = segments_.emplace_hint(next, position, Segment{gap, {}, {}});
    }
    position = next->second.end;
    ++next;
  }
  return segments_.find(span.position);
}

std::vector<Edge> Tracker::admit(Id id, std::uint64_t stream, const Footprint& footprint) {
  std::vector<Edge> edges;
  const auto after = [&](const Access& access, Hazard hazard) {
    if (access.stream != stream)
      edges.push_back({access.id, hazard});
  };
  std::vector<Span>& ranges = ranges_[id];
  const auto visit = [&](const std::vector<Span>& spans, auto&& call) {
    for (const Span& span : spans) {
      if (span.bytes == 0)
        continue;
      for (auto segment = cover(span);
           segment != segments_.end() && segment->first < span.position + span.bytes; ++segment)
        call(segment->second);
    }
  };
  // All edges come first: the operation's own accesses are no hazard to itself.
  visit(footprint.reads, [&](const Segment& segment) {
    if (segment.writer && !SPYRE_MUTANT(raw_edge_dropped))
      after(*segment.writer, Hazard::ReadAfterWrite);
  });
  visit(footprint.writes, [&](const Segment& segment) {
    if (segment.writer && !SPYRE_MUTANT(waw_edge_dropped))
      after(*segment.writer, Hazard::WriteAfterWrite);
    if (!SPYRE_MUTANT(war_edge_dropped))
      for (const Access& reader : segment.readers)
        after(reader, Hazard::WriteAfterRead);
  });
  visit(footprint.reads, [&](Segment& segment) {
    const auto known = std::find_if(segment.readers.begin(), segment.readers.end(),
                                    [&](const Access& reader) { return reader.stream == stream; });
    if (known == segment.readers.end())
      segment.readers.push_back({id, stream});
    else
      known->id = id;
  });
  visit(footprint.writes, [&](Segment& segment) {
    segment.writer = Access{id, stream};
    segment.readers.clear();
  });
  for (const auto* spans : {&footprint.reads, &footprint.writes})
    for (const Span& span : *spans)
      if (span.bytes != 0)
        ranges.push_back(span);
  if (ranges.empty())
    ranges_.erase(id);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

void Tracker::retire(Id id) {
  const auto entry = ranges_.find(id);
  if (entry == ranges_.end())
    return;
  for (const Span& span : entry->second) {
    auto segment = segments_.upper_bound(span.position);
    if (segment != segments_.begin() && std::prev(segment)->second.end > span.position)
      --segment;
    while (segment != segments_.end() && segment->first < span.position + span.bytes) {
      Segment& touched = segment->second;
      if (touched.writer && touched.writer->id == id)
        touched.writer.reset();
      std::erase_if(touched.readers, [&](const Access& reader) { return reader.id == id; });
      segment = touched.writer || !touched.readers.empty() ? std::next(segment) : segments_.erase(segment);
    }
  }
  ranges_.erase(entry);
}

} // namespace spyre::card
