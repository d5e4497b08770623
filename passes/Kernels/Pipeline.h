//===- Pipeline.h - From layer functions of nn ops to target code ---------===//
//
// The CPU pipeline, on the module of layer functions:
//
//   convert-nn-to-linalg     nn ops -> linalg.generic, kern.matmul,
//                            kern.attention*, kern.loops on tensors
//   kern-fuse-elementwise    fusion; an op writes over what it alone reads
//   kern-pass-destinations   results become memref arguments
//   one-shot-bufferize       (without function boundaries)
//   kern-lower-matmul        kern.matmul and kern.attention* on memrefs of
//                            static layout -> scf.parallel/scf.for, memref,
//                            vector ops, calls of private func.funcs of the
//                            module; temporaries are memref.alloc of static
//                            size at the function's top level
//   kern-lower-loops         whatever kern.matmul is left, kern.loops, linalg
//                            -> scf.parallel (outermost), scf.for
//   kern-outline             every loop nest at the top level -> a function of
//                            its own (memrefs are noalias there); kern.launch
//   kern-plan-scratch        memref.alloc -> offsets in the scratch argument
//   kern-add-optimizer       mgq_adamw, mgq_sq_norm, mgq_accumulate
//   kern-expand-math         own exp, tanh, erf, log; bf16 by bit operations
//   convert-kern-to-llvm     LLVM dialect, kernel ABI, target CPU
//   kern-bf16-as-bits        scalars of bf16 become i16
//
// A top-level scf.parallel is what runs on the threads: the outliner cuts it
// into chunks by its static trip count and the work inside. A memref.alloca
// belongs into that loop's body and is for small blocks; it ends up in the
// outlined function's entry block.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_PIPELINE_H
#define MGQ_PASSES_KERNELS_PIPELINE_H

#include "mlir/Pass/PassManager.h"

namespace mgq::kernels {

/// What code is made for.
struct CpuOptions {
  /// native, x86-64-v3, x86-64-v4 or x86-64-v4-bf16.
  std::string cpu = "native";
  /// f32 attention is a generated kernel of its own; else it is made of
  /// products and a softmax.
  bool fusedAttention = true;
  /// Whether to add the kernels that the runtime calls itself to train.
  bool optimizer = true;
};

/// What attention becomes.
enum class AttentionForm {
  Products, ///< and a softmax
  Fused,    ///< f32 is kept whole for kern-lower-matmul
  Tiled     ///< floats up to f32 are kept whole for cuda-tile-attention
};

/// Adds the passes on tensors, and then those to buffers, which all targets
/// share.
void buildTensorPipeline(mlir::OpPassManager &pm, AttentionForm attention);
void buildBufferPipeline(mlir::OpPassManager &pm);

/// Adds the passes above to `pm`, a pass manager of the module of layers.
void buildCpuKernelPipeline(mlir::OpPassManager &pm, const CpuOptions &options);

/// Registers that pipeline as mgq-opt's `--kern-cpu-pipeline`.
void registerCpuKernelPipeline();

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_PIPELINE_H
