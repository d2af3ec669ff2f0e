// The parts of a core's arithmetic side by side, each with ports of its own, for one build of all of them.
module units #(
    parameter int MACS = 64
) (
    input  logic               clk,
    input  logic               reset,

    input  logic               mac_valid,
    input  logic               mac_first,
    input  logic               mac_last,
    input  logic [8*MACS-1:0]  mac_x,
    input  logic [8*MACS-1:0]  mac_weights,
    output logic               mac_done,
    output logic signed [31:0] mac_sum,

    input  logic               requantise_valid,
    input  logic signed [31:0] requantise_sum,
    input  logic [15:0]        requantise_multiplier,
    input  logic [15:0]        requantise_mantissa,
    input  logic [5:0]         requantise_by,
    output logic               requantise_out_valid,
    output logic signed [31:0] requantise_out,

    input  logic               activate_valid,
    input  logic signed [31:0] activate_gate,
    input  logic signed [31:0] activate_up,
    output logic               activate_out_valid,
    output logic signed [31:0] activate_out,

    input  logic               coder_clear,
    input  logic               coder_measure,
    input  logic               coder_fix,
    input  logic               coder_valid,
    input  logic signed [31:0] coder_x,
    output logic [15:0]        coder_mantissa,
    output logic [4:0]         coder_drop,
    output logic               coder_out_valid,
    output logic signed [7:0]  coder_q
);
    mac_array #(
        .MACS(MACS)
    ) mac (
        .clk, .reset, .valid(mac_valid), .first(mac_first), .last(mac_last), .x(mac_x), .weights(mac_weights),
        .done(mac_done), .sum(mac_sum)
    );

    requantise scale (
        .clk, .reset, .valid(requantise_valid), .sum(requantise_sum), .multiplier(requantise_multiplier),
        .mantissa(requantise_mantissa), .by(requantise_by), .out_valid(requantise_out_valid), .out(requantise_out)
    );

    activate swiglu (
        .clk, .reset, .valid(activate_valid), .gate(activate_gate), .up(activate_up), .out_valid(activate_out_valid),
        .out(activate_out)
    );

    coder code (
        .clk, .reset, .clear(coder_clear), .measure(coder_measure), .fix(coder_fix), .valid(coder_valid), .x(coder_x),
        .mantissa(coder_mantissa), .drop(coder_drop), .out_valid(coder_out_valid), .q(coder_q)
    );
endmodule
