// The int8 MAC array of one core: MACS outputs at a time, one term of each a cycle.
//
// A cycle takes one input and the weights of MACS outputs for it, so a group of outputs takes as many cycles as it has
// terms, and groups follow one another without a gap. Sums are 32 bits wide and never rounded: 133,144 terms fit.
//
// `first` is high with the first term of a group, `last` with its last (both in a group of one). `done` is high for one
// cycle, three cycles after the last term was taken; `sums` hold until the next `done`, so whoever takes them has as many
// cycles as the next group has terms. A cycle without `valid` changes nothing.
module mac_array #(
    parameter int MACS = 64
) (
    input  logic                  clk,
    input  logic                  reset,
    input  logic                  valid,
    input  logic                  first,
    input  logic                  last,
    input  logic signed [7:0]     x,
    input  logic [8*MACS-1:0]     weights,
    output logic                  done,
    output logic [32*MACS-1:0]    sums
);
    logic valid_1, first_1, last_1, valid_2, first_2, last_2;

    always_ff @(posedge clk) begin
        valid_1 <= valid && !reset;
        first_1 <= first;
        last_1 <= last;
        valid_2 <= valid_1 && !reset;
        first_2 <= first_1;
        last_2 <= last_1;
        done <= valid_2 && last_2 && !reset;
    end

    for (genvar i = 0; i < MACS; i++) begin : g_mac
        logic signed [7:0] a, b;
        logic signed [15:0] product;
        logic signed [31:0] total, sum;

        // What the accumulator becomes with the product at hand.
        assign sum = (first_2 ? 32'sd0 : total) + 32'(product);

        always_ff @(posedge clk) begin
            a <= x;
            b <= weights[8*i+:8];
            product <= a * b;
            if (valid_2) total <= sum;
            if (valid_2 && last_2) sums[32*i+:32] <= sum;
        end
    end
endmodule
