// Ops of the loss and the optimizer; the end of NNOps.td.
#ifndef MGQ_NN_TRAINING_OPS_TD
#define MGQ_NN_TRAINING_OPS_TD

//===----------------------------------------------------------------------===//
// Loss
//===----------------------------------------------------------------------===//

def NN_CrossEntropyOp : NN_InferredOp<"cross_entropy", [NN_Differentiable]> {
  let summary = "loss of each row: -weight[label] log_softmax(logits)[label]";
  let description = [{
    logits [rows, classes], labels [rows], result [rows]. A row whose label is
    `ignore_index` has loss 0. Any other label outside 0..classes-1 is a
    run-time error. `weight` [classes] defaults to ones.
  }];
  let arguments = (ins NN_FloatTensor:$logits, NN_IndexTensor:$labels, Optional<NN_FloatTensor>:$weight, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$logits `,` $labels (`weight` $weight^)? attr-dict `:` functional-type(operands, results)";
}

def NN_CrossEntropyGradOp : NN_InferredOp<"cross_entropy_grad"> {
  let summary = "gradient of cross_entropy's logits";
  let arguments = (ins NN_FloatTensor:$logits, NN_IndexTensor:$labels, NN_FloatTensor:$grad, Optional<NN_FloatTensor>:$weight, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$logits `,` $labels `,` $grad (`weight` $weight^)? attr-dict `:` functional-type(operands, results)";
}

def NN_LabelWeightsOp : NN_PureOp<"label_weights"> {
  let summary = "what each row counts in the mean: weight[label], 0 if ignored";
  let description = [{
    Depends on labels only. labels [rows], result [rows], of the loss's type.
    The mean of a cross-entropy is reduce sum of cross_entropy divided by
    reduce sum of label_weights.
  }];
  let arguments = (ins NN_IndexTensor:$labels, Optional<NN_FloatTensor>:$weight, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs NN_FloatTensor:$result);
  let assemblyFormat = "$labels (`weight` $weight^)? attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Optimizer
//===----------------------------------------------------------------------===//

def NN_AdamWOp : NN_Op<"adamw", [Pure, AllTypesMatch<["parameter", "gradient", "momentum", "variance", "new_parameter", "new_momentum", "new_variance"]>]> {
  let summary = "one AdamW update of a flat buffer (torch.optim.AdamW)";
  let description = [{
    `scalars` [8] f32, computed by the runtime in f64: gradient factor,
    1 - lr weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t),
    1 / sqrt(1 - beta2^t); `epsilon` f32. With g = gradient * factor:
    p *= 1 - lr wd; m += (1 - beta1)(g - m); v = beta2 v + (1 - beta2) g g;
    p -= step m / (sqrt(v) rbias2 + epsilon).
  }];
  let arguments = (ins NN_FloatTensor:$parameter, NN_FloatTensor:$gradient, NN_FloatTensor:$momentum, NN_FloatTensor:$variance, NN_FloatTensor:$scalars);
  let results = (outs NN_FloatTensor:$new_parameter, NN_FloatTensor:$new_momentum, NN_FloatTensor:$new_variance);
  let assemblyFormat = "$parameter `,` $gradient `,` $momentum `,` $variance `,` $scalars attr-dict `:` functional-type(operands, results)";
}

def NN_SqNormOp : NN_Op<"sq_norm", [Pure]> {
  let summary = "sum of squares of a flat buffer, in f64 blocks of 4096 elements";
  let arguments = (ins NN_FloatTensor:$input);
  let results = (outs RankedTensorOf<[F64]>:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, results)";
}

#endif // MGQ_NN_TRAINING_OPS_TD
