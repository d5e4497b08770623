//===- Memory.cpp - Device memory and its shadow --------------------------===//
//
// Each four bytes of device memory have a cell: the operation that wrote them
// last, those that have read them since, and which bytes were ever written.
// Operations carry the vector clock of their stream when they were enqueued,
// so what orders them does not depend on how fast anything runs. Of readers
// those are kept that no later one is ordered after; where several are left,
// the cell holds the number of a list.
//
//===----------------------------------------------------------------------===//

#include "test/device/cuda/Memory.h"
#include "test/device/cuda/Settings.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

using namespace mgq::device;

namespace {
constexpr int64_t pageBytes = 4096, gap = 1 << 16;
constexpr uint32_t isList = 1u << 31;

template <typename T>
T *mapped(int64_t count) {
  void *memory =
      mmap(nullptr, size_t(count) * sizeof(T), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<T *>(memory);
}

struct Allocation {
  char *base;
  int64_t bytes;
  int device; ///< -1: a variable of a module
  std::string name;
  uint32_t *writer, *reader; ///< by cell: numbers of operations, or lists
  uint8_t *written;          ///< by cell: a bit for each byte
  int uses = 1;              ///< of a variable: modules loaded from its file

  int64_t cells() const { return bytes / 4 + 1; }
  void makeShadow() {
    writer = mapped<uint32_t>(cells());
    reader = mapped<uint32_t>(cells());
    written = mapped<uint8_t>(cells());
  }
  void dropShadow() {
    munmap(writer, size_t(cells()) * 4);
    munmap(reader, size_t(cells()) * 4);
    munmap(written, size_t(cells()));
  }
};

struct State {
  std::mutex mutex; ///< Of the maps. Shadows have the execution lock.
  std::map<const char *, Allocation> allocations; ///< by their end
  std::map<const char *, int64_t> pinned;
  std::vector<int64_t> used;
  int count = 0;
  std::atomic<uint64_t> releases{0}; ///< Allocations given back so far.
  std::vector<std::vector<uint32_t>> readers; ///< lists, some unused
  std::vector<uint32_t> unusedReaders;

  uint32_t operation = 0;
  const Clock *clock = nullptr;
  bool writesAreKnown = true; ///< No kernel writes unseen.
};

/// All operations of the process. An entry never moves, so that it can be read
/// while others are added.
class Traces {
public:
  uint32_t add(OperationTrace trace) {
    std::lock_guard<std::mutex> lock(mutex);
    uint32_t number = ++count;
    OperationTrace *&chunk = chunks[number / chunkSize];
    if (!chunk)
      chunk = new OperationTrace[chunkSize];
    chunk[number % chunkSize] = std::move(trace);
    return number;
  }
  const OperationTrace &operator[](uint32_t number) const {
    return chunks[number / chunkSize][number % chunkSize];
  }

private:
  static constexpr uint32_t chunkSize = 1 << 12;
  std::mutex mutex;
  uint32_t count = 0;
  OperationTrace *chunks[isList / chunkSize] = {};
};
} // namespace

static Traces &traces() {
  static auto *result = new Traces;
  return *result;
}

static State &state() {
  static auto *result = new State;
  return *result;
}

void mgq::device::join(Clock &clock, const Clock &with) {
  if (clock.size() < with.size())
    clock.resize(with.size());
  for (size_t i = 0; i < with.size(); ++i)
    clock[i] = std::max(clock[i], with[i]);
}

uint32_t mgq::device::traceOperation(OperationTrace trace) {
  return traces().add(std::move(trace));
}

void mgq::device::beginOperation(uint32_t number, const Clock *clock) {
  state().operation = number;
  state().clock = clock;
}

//===----------------------------------------------------------------------===//
// Allocations
//===----------------------------------------------------------------------===//

static const Allocation *find(const void *address) {
  static thread_local const Allocation *recent = nullptr;
  static thread_local uint64_t recentReleases = 0;
  State &s = state();
  auto *at = static_cast<const char *>(address);
  if (recent && recentReleases == s.releases.load(std::memory_order_relaxed) &&
      at >= recent->base && at < recent->base + recent->bytes)
    return recent;
  std::lock_guard<std::mutex> lock(s.mutex);
  auto it = s.allocations.upper_bound(at);
  if (it == s.allocations.end() || at < it->second.base)
    return nullptr;
  recent = &it->second;
  recentReleases = s.releases;
  return recent;
}

/// Addresses are never used twice, with a gap between allocations.
static char *reserve(int64_t bytes) {
  static constexpr int64_t regionBytes = int64_t(1) << 42;
  static char *region = static_cast<char *>(
      mmap(nullptr, regionBytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  static int64_t next = gap;
  int64_t room = (bytes + pageBytes - 1) / pageBytes * pageBytes;
  if (region == MAP_FAILED || next + room + gap > regionBytes)
    return nullptr;
  char *base = region + next;
  if (mprotect(base, size_t(room), PROT_READ | PROT_WRITE))
    return nullptr;
  next += room + gap;
  return base;
}

void *mgq::device::allocate(int device, int64_t bytes) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.used.resize(size_t(settings().devices));
  if (bytes > settings().memory - s.used[size_t(device)])
    return nullptr;
  char *base = reserve(bytes);
  if (!base)
    return nullptr;
  std::memset(base, 0xff, size_t(bytes)); // NaN in every float type
  Allocation made{
      base,    bytes,   device, "device memory " + std::to_string(++s.count),
      nullptr, nullptr, nullptr};
  made.makeShadow();
  s.allocations[base + bytes] = made;
  s.used[size_t(device)] += bytes;
  return base;
}

bool mgq::device::release(void *address) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto it = s.allocations.upper_bound(static_cast<const char *>(address));
  if (it == s.allocations.end() || it->second.base != address ||
      it->second.device < 0)
    return false;
  Allocation &old = it->second;
  old.dropShadow();
  int64_t room = (old.bytes + pageBytes - 1) / pageBytes * pageBytes;
  madvise(old.base, size_t(room), MADV_DONTNEED);
  mprotect(old.base, size_t(room), PROT_NONE);
  s.used[size_t(old.device)] -= old.bytes;
  ++s.releases;
  s.allocations.erase(it);
  return true;
}

void mgq::device::addVariable(void *address, int64_t bytes,
                              const std::string &name) {
  if (bytes == 0)
    return;
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  Allocation made{static_cast<char *>(address),
                  bytes,
                  -1,
                  "variable " + name,
                  nullptr,
                  nullptr,
                  nullptr};
  made.makeShadow();
  std::memset(made.written, 0xff, size_t(made.cells()));
  s.allocations[made.base + bytes] = made;
}

void mgq::device::removeVariable(void *address) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto it = s.allocations.upper_bound(static_cast<const char *>(address));
  if (it == s.allocations.end() || it->second.base != address ||
      --it->second.uses > 0)
    return;
  it->second.dropShadow();
  ++s.releases;
  s.allocations.erase(it);
}

int64_t mgq::device::freeBytes(int device) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.used.resize(size_t(settings().devices));
  return settings().memory - s.used[size_t(device)];
}

bool mgq::device::findAllocation(const void *address, void **base,
                                 int64_t *bytes, int *device) {
  const Allocation *found = find(address);
  if (!found)
    return false;
  *base = found->base;
  *bytes = found->bytes;
  *device = found->device;
  return true;
}

std::string mgq::device::describeAddress(const void *address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  const Allocation *found = find(address);
  if (!found)
    return std::string("address ") + text;
  int64_t offset = static_cast<const char *>(address) - found->base;
  return "byte " + std::to_string(offset) + " of " + found->name + " (" +
         std::to_string(found->bytes) + " bytes)";
}

//===----------------------------------------------------------------------===//
// Host memory
//===----------------------------------------------------------------------===//

void mgq::device::addPinned(const void *address, int64_t bytes) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto *base = static_cast<const char *>(address);
  state().pinned[base + bytes] = bytes;
}

bool mgq::device::removePinned(const void *address) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto it = state().pinned.upper_bound(static_cast<const char *>(address));
  if (it == state().pinned.end() || it->first - it->second != address)
    return false;
  state().pinned.erase(it);
  return true;
}

bool mgq::device::isPinned(const void *address, int64_t bytes) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto *at = static_cast<const char *>(address);
  auto it = state().pinned.upper_bound(at);
  return it != state().pinned.end() && at >= it->first - it->second &&
         at + bytes <= it->first;
}

//===----------------------------------------------------------------------===//
// The shadow
//===----------------------------------------------------------------------===//

/// Whether `operation` has happened before the running one.
static bool isBefore(uint32_t operation) {
  State &s = state();
  if (operation == s.operation)
    return true;
  const OperationTrace &trace = traces()[operation];
  const Clock &clock = *s.clock;
  return trace.stream < clock.size() && trace.time <= clock[trace.stream];
}

static void reportRace(const Allocation &allocation, int64_t cell, bool writes,
                       uint32_t otherNumber, bool otherWrites) {
  const OperationTrace &me = traces()[state().operation];
  const OperationTrace &other = traces()[otherNumber];
  std::string what = me.name + " on stream " + std::to_string(me.stream) +
                     (writes ? " writes " : " reads ") +
                     describeAddress(allocation.base + 4 * cell) + ", which " +
                     other.name + " on stream " + std::to_string(other.stream) +
                     (otherWrites ? " writes" : " reads") +
                     ": no event orders them";
  // The same pair of operations in every step is one fault.
  reportOnce("race/" + me.name + "/" + other.name + (writes ? "/w" : "/r") +
                 (otherWrites ? "/w" : "/r"),
             "stream race: " + what);
}

/// A list of two readers; returns its number.
static uint32_t makeReaders(uint32_t first, uint32_t second) {
  State &s = state();
  if (s.unusedReaders.empty()) {
    s.readers.push_back({first, second});
    return uint32_t(s.readers.size() - 1);
  }
  uint32_t number = s.unusedReaders.back();
  s.unusedReaders.pop_back();
  s.readers[number].assign({first, second});
  return number;
}

static void enterRead(const Allocation &allocation, int64_t cell) {
  State &s = state();
  uint32_t &reader = allocation.reader[cell];
  if (reader == s.operation)
    return;
  if (!(reader & isList)) {
    if (reader == 0 || isBefore(reader)) {
      reader = s.operation;
      return;
    }
    reader = isList | makeReaders(reader, s.operation);
    return;
  }
  std::vector<uint32_t> &list = s.readers[reader & ~isList];
  if (list.back() == s.operation)
    return;
  list.erase(std::remove_if(list.begin(), list.end(), isBefore), list.end());
  list.push_back(s.operation);
}

static void enterWrite(const Allocation &allocation, int64_t cell) {
  State &s = state();
  uint32_t &reader = allocation.reader[cell];
  if (reader & isList) {
    for (uint32_t each : s.readers[reader & ~isList])
      if (!isBefore(each))
        reportRace(allocation, cell, true, each, false);
    s.unusedReaders.push_back(reader & ~isList);
  } else if (reader != 0 && !isBefore(reader)) {
    reportRace(allocation, cell, true, reader, false);
  }
  reader = 0;
  allocation.writer[cell] = s.operation;
}

/// Bits of the bytes [from, to) of a cell.
static uint8_t byteBits(int64_t from, int64_t to) {
  return uint8_t((1u << to) - (1u << from));
}

void mgq::device::ignoreUnwritten() { state().writesAreKnown = false; }

std::string mgq::device::touch(const void *address, int64_t bytes,
                               mgq_twin_access_kind kind, bool needsWritten) {
  State &s = state();
  if (bytes <= 0)
    return "";
  const Allocation *found = find(address);
  auto *at = static_cast<const char *>(address);
  if (!found || at + bytes > found->base + found->bytes)
    return std::to_string(bytes) + " bytes out of bounds, at " +
           describeAddress(address);
  if (s.operation == 0)
    return "";
  int64_t first = at - found->base, last = first + bytes - 1;
  bool isWrite = kind != MGQ_TWIN_READ, isRead = kind != MGQ_TWIN_WRITE;
  for (int64_t cell = first / 4; cell <= last / 4; ++cell) {
    uint32_t writer = found->writer[cell];
    if (writer != 0 && writer != s.operation && !isBefore(writer))
      reportRace(*found, cell, isWrite, writer, true);
    uint8_t bits = byteBits(std::max(first - 4 * cell, int64_t(0)),
                            std::min(last - 4 * cell + 1, int64_t(4)));
    if (isRead && needsWritten && s.writesAreKnown &&
        (found->written[cell] & bits) != bits) {
      const OperationTrace &me = traces()[s.operation];
      reportOnce("uninitialized/" + me.name,
                 me.name + " on stream " + std::to_string(me.stream) +
                     " reads " + describeAddress(found->base + 4 * cell) +
                     ", which nobody has written");
    }
    if (isWrite) {
      if (writer != s.operation || found->reader[cell] != 0)
        enterWrite(*found, cell);
      found->written[cell] |= bits;
    } else {
      enterRead(*found, cell);
    }
  }
  return "";
}

void mgq::device::copyWritten(const void *to, const void *from, int64_t bytes) {
  const Allocation *target = find(to), *source = find(from);
  if (!target || !source)
    return;
  int64_t toByte = static_cast<const char *>(to) - target->base;
  int64_t fromByte = static_cast<const char *>(from) - source->base;
  for (int64_t i = 0; i < bytes; ++i) {
    int64_t a = toByte + i, b = fromByte + i;
    bool written = source->written[b / 4] >> b % 4 & 1;
    uint8_t bit = uint8_t(1 << a % 4);
    uint8_t &bits = target->written[a / 4];
    bits = written ? bits | bit : bits & uint8_t(~bit);
  }
}
