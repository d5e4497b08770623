//===- Device.h - What a rank's layer functions run on ----------*- C++ -*-===//
//
// Layer functions run on the host, or on an accelerator, which they only give
// work: it goes on by itself. Common code is written for both. Where it says
// "enqueued", things happen in the order in which they were enqueued, those of
// layer functions included, but maybe after the call has returned; on the host
// they have happened then.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_DEVICE_H
#define MGQ_RUNTIME_COMMON_DEVICE_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace mgq::rt {

class Accelerator;

/// Addresses of the arena are the device's: only its functions and layer
/// functions look behind them. Functions throw Error.
class Device {
public:
  virtual ~Device() = default;

  /// Null: layer functions run on the host, whose memory the arena is.
  virtual Accelerator *accelerator() { return nullptr; }

  /// Enqueued: copies and zeros within the arena.
  virtual void copy(void *to, const void *from, int64_t bytes) = 0;
  virtual void zero(void *to, int64_t bytes) = 0;

  /// Room on the host for `bytes` at `to` in the arena. What the caller has
  /// written there by endWrite() is enqueued to be at `to`. One write at a
  /// time.
  virtual std::byte *beginWrite(void *to, int64_t bytes) = 0;
  virtual void endWrite() = 0;
  /// Both at once.
  void write(void *to, const void *from, int64_t bytes) {
    memcpy(beginWrite(to, bytes), from, bytes);
    endWrite();
  }

  /// Enqueued: copies from the arena to HostCells, to be read after the next
  /// synchronize().
  virtual void read(void *to, const void *from, int64_t bytes) = 0;
  /// Copies from the arena to any host memory, behind what is enqueued, now.
  virtual void readNow(void *to, const void *from, int64_t bytes) = 0;
  /// Returns when all that was enqueued has happened. Throws what went wrong in
  /// it.
  virtual void synchronize() = 0;

  /// Around each layer function, by its name. Afterwards throws what is known
  /// to have gone wrong in it.
  virtual void enterCall(const char *name) = 0;
  virtual void leaveCall(const char *name) = 0;

protected:
  friend class HostMemory;
  virtual void *allocateHost(int64_t bytes) = 0;
  virtual void freeHost(void *memory) = 0;
};

/// Host memory that a device copies to without waiting, zero-filled.
class HostMemory {
public:
  HostMemory(Device &device, int64_t bytes)
      : device(device), memory(device.allocateHost(bytes ? bytes : 1)) {
    memset(memory, 0, bytes);
  }
  HostMemory(const HostMemory &) = delete;
  HostMemory &operator=(const HostMemory &) = delete;
  ~HostMemory() { device.freeHost(memory); }
  void *data() const { return memory; }

private:
  Device &device;
  void *memory;
};

/// Values that cross from a device to the host in each step.
template <typename T>
class HostCells {
public:
  HostCells(Device &device, size_t count)
      : memory(device, static_cast<int64_t>(count * sizeof(T))), count(count) {}
  T &operator[](size_t i) { return begin()[i]; }
  T *begin() { return static_cast<T *>(memory.data()); }
  T *end() { return begin() + count; }

private:
  HostMemory memory;
  size_t count;
};

/// The host. It has no state: all ranks may share it.
Device &hostDevice();

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_DEVICE_H
