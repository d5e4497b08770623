//===- Interrupt.h - Signals that end a run ---------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_INTERRUPT_H
#define MGQ_RUNTIME_COMMON_INTERRUPT_H

namespace mgq::rt {

/// From now on SIGINT and SIGTERM end a run after its step. A second SIGINT
/// kills.
void catchInterrupts();

/// The signal that asked this process to end, 0: none.
int interruptSignal();

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_INTERRUPT_H
