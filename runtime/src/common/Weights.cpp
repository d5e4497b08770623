//===- Weights.cpp - Parameters in their files ----------------------------===//

#include "runtime/src/common/Weights.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <cstring>
#include <unistd.h>

using namespace mgq::rt;

// Bytes of a parameter that are copied at a time.
static constexpr int64_t pieceBytes = int64_t{4} << 20;

/// Calls fill(room, begin, count) for pieces of `count` elements in the arena.
template <typename Fill>
static void writePieces(Device &device, std::byte *to, int64_t count,
                        int64_t elementBytes, Fill fill) {
  int64_t most = pieceBytes / elementBytes;
  for (int64_t begin = 0; begin < count; begin += most) {
    int64_t size = std::min(most, count - begin);
    fill(device.beginWrite(to + begin * elementBytes, size * elementBytes),
         begin, size);
    device.endWrite();
  }
}

/// Rounds floats of any type, once, to another of 16 or 32 bits.
static void roundFloats(mgq_type from, const std::byte *data, mgq_type to,
                        std::byte *room, int64_t count) {
  float values[1024];
  constexpr int64_t most = std::size(values);
  for (int64_t begin = 0; begin < count; begin += most) {
    int64_t size = std::min(most, count - begin);
    convertToFloat(from, data + begin * typeBytes(from), values, size);
    convertFromFloat(to, values, room + begin * typeBytes(to), size);
  }
}

static int64_t countOf(const mgq_param &param) {
  int64_t count = elementCount(shapeOf(param.stored)).value_or(-1);
  if (count < 0 || param.stored.bytes != count * typeBytes(param.stored.type))
    fail("the program's tables are damaged: shape of parameter '{}'",
         param.name);
  return count;
}

/// The type of a frozen parameter's copy.
static mgq_type copyType(const mgq_param &param, const mgq_place &place) {
  mgq_type stored = param.stored.type;
  auto type = place.type < 0 ? stored : static_cast<mgq_type>(place.type);
  if (type != stored && (type != MGQ_BF16 || !isFloat(stored)))
    fail("the program's tables are damaged: parameter '{}' of type {} as {}",
         param.name, typeName(stored), place.type);
  return type;
}

/// Copies elements [first, end) of a frozen parameter.
static void copyFrozen(mgq_type stored, const std::byte *data, int64_t first,
                       int64_t end, mgq_type type, Device &device,
                       std::byte *to) {
  data += first * typeBytes(stored);
  writePieces(device, to, end - first, typeBytes(type),
              [&](std::byte *room, int64_t begin, int64_t size) {
                const std::byte *from = data + begin * typeBytes(stored);
                if (type == stored)
                  memcpy(room, from, size * typeBytes(stored));
                else
                  roundFloats(stored, from, type, room, size);
              });
}

/// Copies what a member's slice has of a frozen parameter that is spread.
static void copySlice(const RankView &view, const mgq_shard &shard,
                      const mgq_place &place, const std::byte *data,
                      Arena &arena) {
  const mgq_param &param = view.program.params[place.param];
  mgq_type type = copyType(param, place);
  int64_t size = typeBytes(type), bytes = countOf(param) * size;
  // Where the slice begins in the parameter.
  int64_t begin = shard.buffer + view.shardMember() * shard.slice_bytes -
                  place.value_offset;
  if (begin % size || shard.slice_bytes % size)
    fail("the program's tables are damaged: parameter '{}' in slices of {} "
         "bytes",
         param.name, shard.slice_bytes);
  int64_t first = std::clamp<int64_t>(begin, 0, bytes);
  int64_t end = std::clamp(begin + shard.slice_bytes, first, bytes);
  copyFrozen(param.stored.type, data, first / size, end / size, type,
             arena.device(), arena.at(shard.slice + first - begin));
}

/// Copies what the program wants in the arena.
static void copyToArena(const mgq_param &param, const mgq_place &place,
                        const std::byte *data, Arena &arena) {
  Device &device = arena.device();
  int64_t count = countOf(param);
  if (!param.trainable) {
    if (place.value_offset >= 0)
      copyFrozen(param.stored.type, data, 0, count, copyType(param, place),
                 device, arena.at(place.value_offset));
    return;
  }
  if (!isFloat(param.stored.type))
    fail("the program's tables are damaged: trainable parameter '{}' has type "
         "{}",
         param.name, typeName(param.stored.type));
  if (place.value_offset >= 0)
    writePieces(device, arena.at(place.value_offset), count, sizeof(float),
                [&](std::byte *room, int64_t begin, int64_t size) {
                  convertToFloat(param.stored.type,
                                 data + begin * typeBytes(param.stored.type),
                                 reinterpret_cast<float *>(room), size);
                });
  for (int64_t offset :
       {place.grad_offset, place.momentum_offset, place.variance_offset})
    if (offset >= 0)
      device.zero(arena.at(offset), count * sizeof(float));
}

/// Hash of the bytes of `file` outside the parameters it holds.
static uint64_t graphHash(const mgq_program &program, const mgq_file &known,
                          const MappedFile &file) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int32_t i = 0; i < program.param_count; ++i) {
    const mgq_param &param = program.params[i];
    if (strcmp(param.file, known.name) == 0)
      ranges.emplace_back(param.file_offset,
                          param.file_offset + param.stored.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t hash = MGQ_HASH_START;
  int64_t at = 0;
  for (auto [begin, end] : ranges) {
    hash = mgq_hash(hash, file.data() + at, begin - at);
    at = std::max(at, end);
  }
  return mgq_hash(hash, file.data() + at, file.size() - at);
}

void Weights::checkFiles(const mgq_program &program, const std::string &home) {
  for (int32_t i = 0; i < program.file_count; ++i) {
    const mgq_file &known = program.files[i];
    std::string path = home + "/" + known.name;
    auto it = files.find(path);
    if (it == files.end())
      continue;
    const MappedFile &file = *it->second;
    if (known.bytes >= 0 && file.size() != known.bytes)
      fail("'{}' has {} bytes, it had {} when the program was compiled; "
           "compile it again",
           path, file.size(), known.bytes);
    if (known.has_graph && graphHash(program, known, file) != known.graph_hash)
      fail("'{}' holds another graph than when the program was compiled; "
           "compile it again",
           path);
  }
}

Weights::Weights(const RankView &view, const std::string &folder)
    : view(view), pointers(view.program.param_count) {
  const mgq_program &program = view.program;
  std::vector<bool> used = usedParams(program, view.tables);
  std::string home = folder.empty() ? folderOf(program.model_path) : folder;
  for (int32_t i = 0; i < program.param_count; ++i) {
    if (!used[i])
      continue;
    const mgq_param &param = program.params[i];
    std::string path = home + "/" + param.file;
    std::unique_ptr<MappedFile> &file = files[path];
    if (!file) {
      if (access(path.c_str(), F_OK))
        fail("cannot find '{}', which holds parameter '{}'; --weights DIR says "
             "where the weights are now",
             path, param.name);
      file = std::make_unique<MappedFile>(path);
    }
    if (param.file_offset < 0 || param.stored.bytes < 0 ||
        param.file_offset > file->size() - param.stored.bytes)
      fail("'{}' is too short: parameter '{}' is at bytes {} to {}, the file "
           "has {}",
           path, param.name, param.file_offset,
           param.file_offset + param.stored.bytes, file->size());
    pointers[i] = file->data() + param.file_offset;
  }
  checkFiles(program, home);
}

void Weights::load(Arena &arena, const std::function<void()> &pulse) const {
  for (int32_t i = 0; i < view.tables.place_count; ++i) {
    const mgq_place &place = view.tables.places[i];
    copyToArena(view.program.params[place.param], place, pointers[place.param],
                arena);
    if (pulse)
      pulse();
  }
  for (int32_t i = 0; i < view.tables.shard_count; ++i) {
    const mgq_shard &shard = view.tables.shards[i];
    if (!view.isInside(shard, arena.size()))
      fail("the program's tables are damaged: shard {}", i);
    for (int32_t j = 0; j < shard.copy_count; ++j)
      copySlice(view, shard, shard.copies[j], pointers[shard.copies[j].param],
                arena);
    if (pulse)
      pulse();
  }
}
