//===- Window.h - Windows of convolutions and pools -----------------------===//
#ifndef MGQ_FRONTENDS_ONNX_WINDOW_H
#define MGQ_FRONTENDS_ONNX_WINDOW_H

#include "frontends/onnx/Node.h"

namespace mgq::onnx {

/// Strides, dilations and pads, one per spatial dimension.
struct Window {
  Shape strides, dilations, before, after;
};

/// Reads a node's window of size `kernel` over `x`, [batch, channels,
/// spatial...]; auto_pad becomes pads.
std::optional<Window> windowOf(Node &n, mlir::Value x,
                               llvm::ArrayRef<int64_t> kernel);

} // namespace mgq::onnx

#endif // MGQ_FRONTENDS_ONNX_WINDOW_H
