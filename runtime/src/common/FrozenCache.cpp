//===- FrozenCache.cpp - Outputs of the frozen prefix, kept ---------------===//

#include "runtime/src/common/FrozenCache.h"
#include "runtime/src/common/Accelerator.h"
#include <algorithm>
#include <cstring>

using namespace mgq::rt;

// Of what an accelerator is given at once.
static constexpr int64_t pieceBytes = int64_t{1} << 20;

static uint64_t hashText(uint64_t hash, const char *text) {
  return mgq_hash(hash, text, static_cast<int64_t>(strlen(text)) + 1);
}

template <typename T>
static uint64_t hashValue(uint64_t hash, const T &value) {
  return mgq_hash(hash, &value, sizeof value);
}

/// Of the prefix' parameters, as all ranks together hold them: each rank knows
/// those that it uses.
static uint64_t weightsHash(const mgq_program &program, const Weights &weights,
                            Group &group) {
  size_t count = program.prefix_param_count;
  std::vector<uint64_t> mine(count), all(count * group.size());
  for (size_t i = 0; i < count; ++i) {
    int32_t param = program.prefix_params[i];
    const mgq_param &entry = program.params[param];
    if (const std::byte *bytes = weights.data(param))
      mine[i] = mgq_hash(hashText(MGQ_HASH_START, entry.name), bytes,
                         entry.stored.bytes);
    group.pulse();
  }
  group.allGather(mine.data(), static_cast<int64_t>(count * 8), all.data());
  uint64_t hash = MGQ_HASH_START;
  for (size_t i = 0; i < count; ++i) {
    uint64_t known = 0;
    for (int32_t rank = 0; rank < group.size(); ++rank)
      known = std::max(known, all[rank * count + i]);
    hash = hashValue(hash, known);
  }
  return hash;
}

FrozenCache::FrozenCache(const RankView &view, const Options &options,
                         const Weights &weights, const DataReader &data,
                         Group &group, Device &device)
    : view(view), data(data), device(device),
      inFiles(options.cacheFrozen != "memory"), parts(view.tables.chunk_count) {
  const mgq_program &program = view.program;
  if (!program.prefix_code)
    throw CommonError(fmt::format(
        "--cache-frozen: there is nothing to keep: {}", program.prefix_fault));
  if (program.by_sample || variantsOf(program).size() > 1)
    throw CommonError("not supported yet: --cache-frozen with "
                      "--micro-batches=MIN:MAX; supported: --micro-batches=N");
  for (int32_t i = 0; i < program.layer_count; ++i)
    if (program.layers[i].late_from > 0)
      throw CommonError("not supported yet: --cache-frozen with an executable "
                        "of --fp32-steps, whose prefix changes its precision");
  for (int32_t stage = 0; stage < program.stages; ++stage)
    if (program.ranks[stage].shard_count)
      throw CommonError("not supported yet: --cache-frozen with an executable "
                        "of --frozen=sharded; supported: stage, replicated");
  for (int32_t stage = 0; stage < program.stages; ++stage)
    for (int32_t i = 0; i < program.ranks[stage].op_count; ++i)
      ahead |= program.ranks[stage].ops[i].ahead != 0;
  uint64_t base = hashText(MGQ_HASH_START, program.prefix_code);
  base = hashText(base, program.compiler_version);
  // Another GPU's libraries may compute other bits.
  if (Accelerator *accelerator = device.accelerator())
    base = hashText(base, accelerator->model().c_str());
  int64_t limit = options.cacheLimit;
  if (inFiles) {
    base = hashValue(base, weightsHash(program, weights, group));
    group.agree([&] { limit -= openCacheFolder(options.cacheFrozen); });
    limit = std::max<int64_t>(0, limit) / group.size();
    contents.assign(data.records(), 0);
  }
  Options own = options;
  own.cacheLimit = limit;
  for (int32_t local = 0; local < view.tables.chunk_count; ++local)
    addPart(local, own, base);
  size_t microBatches = program.micro_batches;
  known.assign(2 * microBatches, 0);
  mine.resize(microBatches);
  all.resize(microBatches * group.size());
  computed.reserve(2 * microBatches * parts.size());
}

void FrozenCache::addPart(int32_t local, const Options &options,
                          uint64_t base) {
  const mgq_chunk &chunk = view.tables.chunks[local];
  Part &part = parts[local];
  if (!chunk.frozen_call_count)
    return;
  part.chunk = &chunk;
  part.frozen.resize(chunk.forward.call_count);
  for (int32_t i = 0; i < chunk.frozen_call_count; ++i)
    part.frozen.at(chunk.frozen_calls[i]) = true;
  part.runsHere.resize(view.program.micro_batches);
  for (int32_t i = 0; i < view.tables.op_count; ++i) {
    const mgq_op &op = view.tables.ops[i];
    if (op.kind == MGQ_OP_FORWARD && op.chunk == local)
      part.runsHere[op.micro_batch] = true;
  }
  for (int32_t i = 0; i < chunk.kept_count; ++i) {
    const mgq_kept &kept = chunk.kept[i];
    part.bytes += kept.bytes;
    part.lastCall = kept.call;
    base = hashText(base, chunk.forward.calls[kept.call].name);
    base = hashValue(base, kept);
  }
  part.base = base;
  if (!part.bytes)
    return;
  part.values = std::make_unique<HostMemory>(
      device, 2 * view.program.micro_batches * part.bytes);
  part.store = inFiles ? makeFileStore(options.cacheFrozen, part.bytes,
                                       options.cacheLimit)
                       : makeMemoryStore(chunk.index, data.records(),
                                         part.bytes, options.cacheLimit);
}

/// Hash of what the prefix reads of a record.
uint64_t FrozenCache::contentOf(int64_t record) {
  if (!inFiles)
    return 0;
  uint64_t &content = contents[record];
  if (content == 0) {
    content = MGQ_HASH_START;
    for (int32_t i = 0; i < view.program.prefix_input_count; ++i)
      content = data.hash(record, view.program.prefix_inputs[i], content);
  }
  return content;
}

void FrozenCache::decide(int64_t step, const std::vector<int64_t> &records,
                         Group &group) {
  for (int32_t i = 0; i < view.program.micro_batches; ++i) {
    mine[i] = 1;
    for (Part &part : parts)
      if (part.store && part.runsHere[i] &&
          !part.store->read(records[i],
                            hashValue(part.base, contentOf(records[i])),
                            part.valuesAt(slotOf(step, i))))
        mine[i] = 0;
  }
  auto count = static_cast<int64_t>(mine.size());
  group.allGather(mine.data(), count, all.data());
  decidedStep[step & 1] = step;
  for (int32_t i = 0; i < count; ++i) {
    uint8_t isKnown = 1;
    for (int32_t stage = 0; stage < view.program.stages; ++stage)
      isKnown &= all[view.rankOfStage(stage) * count + i];
    known[slotOf(step, i)] = isKnown;
    hitCount += isKnown;
  }
  decidedCount += count;
}

CallFilter *FrozenCache::filter(int32_t chunk, int32_t microBatch,
                                int64_t record, int64_t step) {
  Part &part = parts[chunk];
  if (!part.chunk)
    return nullptr;
  size_t slot = slotOf(step, microBatch);
  running = &part;
  runningRecord = record;
  isHit = decidedStep[step & 1] == step && known[slot] != 0;
  runningValues = part.store ? part.valuesAt(slot) : nullptr;
  return this;
}

/// Calls visit(place of the kept value, its place in `args`, bytes).
template <typename Visit>
static void forKept(const mgq_chunk &chunk, int32_t call, std::byte *values,
                    void *const *args, Visit visit) {
  for (int32_t i = 0; i < chunk.kept_count; ++i) {
    const mgq_kept &kept = chunk.kept[i];
    if (kept.call == call)
      visit(values, args[kept.arg], kept.bytes);
    values += kept.bytes;
  }
}

bool FrozenCache::skips(int32_t call, void *const *args) {
  if (!isHit || !running->frozen[call])
    return false;
  forKept(*running->chunk, call, runningValues, args,
          [&](const std::byte *values, void *arg, int64_t bytes) {
            auto *to = static_cast<std::byte *>(arg);
            for (int64_t at = 0; at < bytes; at += pieceBytes)
              device.write(to + at, values + at,
                           std::min(pieceBytes, bytes - at));
          });
  return true;
}

void FrozenCache::ran(int32_t call, void *const *args) {
  if (isHit || !running->store || !running->frozen[call])
    return;
  forKept(*running->chunk, call, runningValues, args,
          [&](std::byte *values, const void *arg, int64_t bytes) {
            device.read(values, arg, bytes);
          });
  if (call != running->lastCall)
    return;
  computed.push_back({running, runningRecord, runningValues});
  if (!device.accelerator())
    flush();
}

void FrozenCache::flush() {
  if (computed.empty())
    return;
  device.synchronize();
  for (const Computed &one : computed)
    one.part->store->write(one.record,
                           hashValue(one.part->base, contentOf(one.record)),
                           one.values);
  computed.clear();
}
