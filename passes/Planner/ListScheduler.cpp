//===- ListScheduler.cpp - Greedy orders under memory limits --------------===//
//
// Time goes from event to event: a rank becomes free, or something arrives for
// it. What ranks have started is known to the others with the time of arrival,
// so that a rank can leave a task for one that comes soon.
//
// Memory can not lock ranks up. A forward is admitted only if the later chunks
// of its rank still fit once each. So take the last chunk after which a
// micro-batch waits: all that is in flight behind it can run backward and go,
// and what is left on the next chunk's rank came in by admissions that kept
// room for that chunk.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/ListScheduler.h"

#include <algorithm>
#include <limits>

using namespace mgq::planner;

static constexpr double kUnknown = std::numeric_limits<double>::infinity();

ListScheduler::ListScheduler(const ScheduleProblem &problem)
    : problem(problem), chunkCount(problem.chunks.size()),
      microBatches(problem.microBatches), consumers(chunkCount),
      sources(gradientSources(problem)), slots(problem.ranks),
      behind(problem.ranks, 0) {
  for (int c = 0; c < chunkCount; ++c)
    if (sources[c] >= 0 && problem.chunks[c].hasBackward)
      consumers[sources[c]].push_back(c);
  while (afterPrefix < chunkCount &&
         problem.chunks[afterPrefix].ranks.size() > 1)
    ++afterPrefix;

  work.assign(problem.ranks, 0);
  std::vector<int> firstChunk(problem.ranks, chunkCount);
  for (int c = 0; c < chunkCount; ++c) {
    const ChunkCosts &chunk = problem.chunks[c];
    std::vector<int> ranks = chunk.ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    bool spread = ranks.size() > 1;
    for (int rank : ranks) {
      Slot slot{c, spread, {0, 0, 0}, 0, {}};
      for (int i = 0; i < microBatches; ++i)
        if (problem.rankOf(c, i) == rank)
          slot.microBatches.push_back(i);
      work[rank] += slot.microBatches.size() *
                    (chunk.forward + (chunk.hasBackward ? chunk.backward : 0) +
                     (chunk.hasBackward && chunk.hasWeight ? chunk.weight : 0));
      slots[rank].push_back(std::move(slot));
      if (!spread)
        firstChunk[rank] = std::min(firstChunk[rank], c);
    }
    taskCount += long(microBatches) * (1 + chunk.hasBackward +
                                       (chunk.hasBackward && chunk.hasWeight));
  }
  lag.assign(problem.ranks, 0);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    int owned = 0;
    int64_t later = 0;
    double forward = 0, way = 0;
    for (int c = firstChunk[rank]; c < chunkCount; ++c) {
      const ChunkCosts &chunk = problem.chunks[c];
      way += c == firstChunk[rank] ? 0 : chunk.forward + chunk.backward;
      way += c + 1 < chunkCount ? chunk.send : 0;
      way += c == firstChunk[rank] ? 0 : chunk.sendBack;
      if (chunk.ranks.front() == rank)
        forward = std::max(forward, chunk.forward);
    }
    if (forward > 0)
      lag[rank] = way / forward;
    for (size_t s = slots[rank].size(); s-- > 0;) {
      Slot &slot = slots[rank][s];
      slot.laterBytes = later;
      if (problem.chunks[slot.chunk].hasBackward)
        later += problem.chunks[slot.chunk].residualBytes;
      owned += !slot.spread;
    }
    mostChunks = std::max(mostChunks, owned);
    for (int other : firstChunk)
      behind[rank] += other < chunkCount && other > firstChunk[rank];
  }
}

int64_t ListScheduler::leastBytes(int rank) const {
  int64_t bytes = 0;
  for (const Slot &slot : slots[rank])
    if (problem.chunks[slot.chunk].hasBackward)
      bytes += problem.chunks[slot.chunk].residualBytes;
  return bytes;
}

void ListScheduler::reset(const ListSettings &newSettings) {
  settings = newSettings;
  arrivals.assign(size_t(2) * chunkCount * microBatches, kUnknown);
  freeAt.assign(problem.ranks, 0);
  firstBegin.assign(problem.ranks, kUnknown);
  idle.assign(problem.ranks, 0);
  mostIdle = 0;
  held.assign(problem.ranks, 0);
  flying.assign(problem.ranks, 0);
  backwards.assign(problem.ranks, 0);
  cap.assign(problem.ranks, std::numeric_limits<int>::max() / 2);
  if (settings.capBase || settings.capSlope || settings.capLag > 0)
    for (int rank = 0; rank < problem.ranks; ++rank)
      cap[rank] =
          settings.capBase + settings.capSlope * behind[rank] +
          int(std::min(settings.capLag * lag[rank] + 1e-9, double(taskCount)));
  for (std::vector<Slot> &row : slots)
    for (Slot &slot : row)
      std::fill(slot.next, slot.next + 3, 0);
  wakeAt.assign(problem.ranks, 0);
  workLeft = work;
  hopeless = false;
  prefixTaken = 0;
  started = 0;
  last = widest = 0;
  std::fill_n(arrivals.begin(), microBatches, 0.0);
  if (orders) {
    orders->assign(problem.ranks, {});
    for (std::vector<Task> &order : *orders)
      order.reserve(taskCount / problem.ranks + 1);
  }
}

bool ListScheduler::hasRoom(int rank, const Slot &slot) const {
  const ChunkCosts &chunk = problem.chunks[slot.chunk];
  return !chunk.hasBackward || problem.memoryLimit.empty() ||
         held[rank] + chunk.residualBytes + slot.laterBytes <=
             problem.memoryLimit[rank];
}

int64_t ListScheduler::forwardKey(const Slot &slot, int i) const {
  if (slot.spread) // Before all others where needed, behind them otherwise.
    return i < prefixTaken + settings.prefixAhead
               ? i - microBatches
               : std::numeric_limits<int64_t>::max() / 2 + i;
  int64_t depth = settings.deepFirst ? chunkCount - 1 - slot.chunk : slot.chunk;
  int64_t group = i / settings.group;
  return (group * chunkCount + depth) * settings.group + i % settings.group;
}

int64_t ListScheduler::backwardKey(const Slot &slot, int i) const {
  int64_t group = i / settings.group;
  return (group * chunkCount + chunkCount - 1 - slot.chunk) * settings.group +
         i % settings.group;
}

void ListScheduler::start(int rank, Slot &slot, TaskKind kind, double now) {
  int c = slot.chunk;
  const ChunkCosts &chunk = problem.chunks[c];
  int i = slot.microBatches[slot.next[int(kind)]++];
  double end = now;
  switch (kind) {
  case TaskKind::Forward:
    end += chunk.forward;
    if (chunk.hasBackward) {
      held[rank] += chunk.residualBytes;
      ++flying[rank];
      if (sources[c] < 0)
        backwardArrival(c, i) = end;
    }
    if (c == afterPrefix) {
      ++prefixTaken;
      // Prefixes that were not needed yet may be needed now.
      for (int other = 0; afterPrefix > 0 && other < problem.ranks; ++other)
        wake(now, other);
    }
    if (c + 1 < chunkCount) {
      int to = problem.rankOf(c + 1, i);
      double arrival = end + (to == rank ? 0 : chunk.send);
      forwardArrival(c + 1, i) = arrival;
      wake(arrival, to);
    }
    break;
  case TaskKind::Backward:
    end += chunk.backward;
    held[rank] -=
        chunk.residualBytes - (chunk.hasWeight ? chunk.weightResidualBytes : 0);
    --flying[rank];
    ++backwards[rank];
    for (int consumer : consumers[c]) {
      int to = problem.rankOf(consumer, i);
      double arrival = end + (to == rank ? 0 : chunk.sendBack);
      backwardArrival(consumer, i) = arrival;
      wake(arrival, to);
    }
    break;
  case TaskKind::Weight:
    end += chunk.weight;
    held[rank] -= chunk.weightResidualBytes;
    break;
  }
  if (orders)
    (*orders)[rank].push_back({kind, c, i});
  if (firstBegin[rank] == kUnknown)
    firstBegin[rank] = now;
  else
    idle[rank] += now - freeAt[rank];
  mostIdle = std::max(mostIdle, idle[rank]);
  freeAt[rank] = end;
  wakeAt[rank] = end;
  workLeft[rank] -= end - now;
  hopeless |=
      end + workLeft[rank] - (problem.overlapsSteps ? firstBegin[rank] : 0) >
      cutoff;
  last = std::max(last, end);
  ++started;
}

void ListScheduler::dispatch(int rank, double now) {
  Choice forward, backward, weight;
  double nextForward = kUnknown, nextBackward = kUnknown;
  for (Slot &slot : slots[rank]) {
    const ChunkCosts &chunk = problem.chunks[slot.chunk];
    int count = slot.microBatches.size();
    if (slot.next[0] < count) {
      int i = slot.microBatches[slot.next[0]];
      double arrival = forwardArrival(slot.chunk, i);
      bool admitted = arrival < kUnknown && hasRoom(rank, slot) &&
                      (!chunk.hasBackward || flying[rank] < cap[rank]) &&
                      (!slot.spread || i < prefixTaken + settings.prefixAhead +
                                               4 * problem.ranks);
      if (admitted && arrival > now)
        nextForward = std::min(nextForward, arrival);
      if (admitted && arrival <= now) {
        int64_t key = forwardKey(slot, i);
        if (!forward.slot || key < forward.key)
          forward = {&slot, key};
      }
    }
    if (!chunk.hasBackward)
      continue;
    if (slot.next[1] < slot.next[0]) {
      int i = slot.microBatches[slot.next[1]];
      double arrival = backwardArrival(slot.chunk, i);
      if (arrival > now)
        nextBackward = std::min(nextBackward, arrival);
      else if (int64_t key = backwardKey(slot, i);
               !backward.slot || key < backward.key)
        backward = {&slot, key};
    }
    if (chunk.hasWeight && slot.next[2] < slot.next[1]) {
      int64_t key = backwardKey(slot, slot.microBatches[slot.next[2]]);
      if (!weight.slot || key < weight.key)
        weight = {&slot, key};
    }
  }

  // A forward that would hold up a backward for too long is left.
  if (forward.slot && !settings.forwardFirst) {
    double time = problem.chunks[forward.slot->chunk].forward;
    double slack =
        backwards[rank] ? settings.forwardSlack : settings.warmUpSlack;
    if (now + time - nextBackward > slack * time) {
      nextForward = now;
      forward.slot = nullptr;
    }
  }
  if (backward.slot && !(settings.forwardFirst && forward.slot))
    return start(rank, *backward.slot, TaskKind::Backward, now);
  if (forward.slot)
    return start(rank, *forward.slot, TaskKind::Forward, now);
  double next =
      std::min(nextForward > now ? nextForward : kUnknown, nextBackward);
  if (weight.slot) {
    double time = problem.chunks[weight.slot->chunk].weight;
    bool mostIdleNext = settings.evenIdle && next < kUnknown &&
                        idle[rank] + next - freeAt[rank] > mostIdle;
    if (now + time - next <= settings.weightSlack * time || mostIdleNext)
      return start(rank, *weight.slot, TaskKind::Weight, now);
  }
  // Until something that is not known yet comes.
  wakeAt[rank] = next;
}

bool ListScheduler::run(const ListSettings &newSettings, Orders *newOrders,
                        double newCutoff) {
  orders = newOrders;
  cutoff = newCutoff;
  reset(newSettings);
  if (!problem.memoryLimit.empty())
    for (int rank = 0; rank < problem.ranks; ++rank)
      if (leastBytes(rank) > problem.memoryLimit[rank])
        return false;

  double now = 0;
  long raised = 0;
  while (started < taskCount) {
    int rank = std::min_element(wakeAt.begin(), wakeAt.end()) - wakeAt.begin();
    if (wakeAt[rank] == kUnknown) {
      // Only caps lock ranks up, and these are below the number of tasks; or
      // weight residuals larger than residuals, which memory may not admit.
      if (++raised > taskCount)
        return false;
      for (int other = 0; other < problem.ranks; ++other) {
        ++cap[other];
        wake(now, other);
      }
      continue;
    }
    now = wakeAt[rank];
    dispatch(rank, now);
    if (hopeless) {
      last = widest = kUnknown;
      return true;
    }
  }
  for (int rank = 0; rank < problem.ranks; ++rank)
    if (firstBegin[rank] < kUnknown)
      widest = std::max(widest, freeAt[rank] - firstBegin[rank]);
  return true;
}
