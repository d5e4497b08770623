//===- Registry.h - Which function imports which operator -----------------===//
#ifndef MGQ_FRONTENDS_ONNX_REGISTRY_H
#define MGQ_FRONTENDS_ONNX_REGISTRY_H

#include "frontends/onnx/Node.h"

#include "llvm/ADT/StringMap.h"

namespace mgq::onnx {

/// From operator type to import function. The key of an operator outside the
/// default domain is "domain:Type".
using Registry = llvm::StringMap<ImportFunction>;

/// All operators, filled by the families below once.
const Registry &registry();

// One function per family, each in the file of its name. To add an operator,
// add a line to its family's function.
void registerAttention(Registry &registry);
void registerDropout(Registry &registry);
void registerElementwise(Registry &registry);
void registerLinear(Registry &registry);
void registerLoss(Registry &registry);
void registerMovement(Registry &registry);
void registerNorm(Registry &registry);
void registerPool(Registry &registry);
void registerReduce(Registry &registry);
void registerResize(Registry &registry);
void registerShape(Registry &registry);

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_REGISTRY_H
